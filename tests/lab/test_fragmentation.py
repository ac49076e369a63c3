"""Context fragmentation: tokens are counted where they go through the model."""

from pathlib import Path

import pytest
import torch

from runs import make_corpus
from segue.checkpoint import Bundle
from segue.config import Reach, Reading
from segue.lab import fragmentation
from segue.lab.experiment import Setting, Verdict
from support import build, shape

SEGMENT, TOTAL = 8, 64


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("fragmentation"), documents=1, words=1200)


@pytest.mark.parametrize("mode", fragmentation.MODES)
def test_tokens_that_go_through_the_layers_are_counted(mode: str, corpus: Path, tmp_path: Path) -> None:
    reach = Reach(memory=SEGMENT) if mode == "xl" else Reach(memory=0, positions="restart")
    model = build(shape("xl" if mode == "xl" else "sinusoidal", vocab=256)).float()
    bundle = Bundle(model, Reading(segment=SEGMENT, reach=reach))
    figures = fragmentation._read(Setting(corpus, tmp_path, quick=True), bundle, mode, TOTAL)
    assert figures["read"] == (SEGMENT if mode == "sliding" else 1)


def test_every_call_is_counted() -> None:
    engine = fragmentation.CountingEngine(build(shape("xl")).frozen())
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    _, memory = engine(tokens, engine.start(lanes=2, reach=Reach(memory=4)))
    engine(tokens[:, :1], memory)
    assert engine.counts == [6, 2]


def test_a_difference_of_untrained_weights_is_no_seam() -> None:
    """Untrained, the loss is about the same at all positions, and a tiny difference does not count as shown."""
    bits = {
        "segments": [7.9011] * 4 + [7.9001] * 4,
        "sliding": [7.9001] * 8,
        "relative": [7.9001] * 8,
        "xl": [7.9] * 8,
    }
    modes = {mode: [{"bits": bits[mode], "read": 1.0}] for mode in fragmentation.MODES}
    results = {"segment": 8, "scored": 8, "trained": 0, "ways": modes}
    verdicts = [block for block in fragmentation.tell(results) if isinstance(block, Verdict)]
    assert [verdict.shown for verdict in verdicts] == [False, False, False]
