"""Several ranks train as one process does: the same losses, the same weights, the same files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import segue
from rank_runs import SIZES, both, check_equal, cut_to, pair_recipe, plain_recipe, universal, weights
from ranks import on_ranks, succeeded
from runs import small_recipe
from segue.checkpoint import WEIGHTS, read_tensors
from segue.config import Reach, Reading
from segue.distributed import process_group
from segue.infer.evaluate import evaluate
from segue.text.corpus import Stream, open_corpus
from support import build, shape


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "train",
    [
        {"optimizer": "adamw", "weight_decay": 0.01, "validate_every": 20, "validate_tokens": 300},
        {"optimizer": "muon", "accumulate": 2, "loss": "half", "clip": 0.05},
    ],
    ids=["adamw", "muon"],
)
def test_ranks_that_share_lanes_train_as_one_process(
    train: dict[str, object], size: int, corpus: Path, tmp_path: Path
) -> None:
    check_equal(*both(plain_recipe(**train), corpus, tmp_path, size))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("size", SIZES)
def test_ranks_that_share_pairs_train_as_one_process(size: int, pairs: Path, tmp_path: Path) -> None:
    check_equal(*both(pair_recipe(pairs), pairs, tmp_path, size))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("side", ["lanes", "pairs"])
def test_ranks_pay_the_ponder_cost_of_one_process(
    side: str, corpus: Path, pairs: Path, tmp_path: Path
) -> None:
    recipe, data = plain_recipe(accumulate=2, steps=20), corpus
    if side == "pairs":
        recipe, data = pair_recipe(pairs, steps=20), pairs
    check_equal(*both(universal(recipe), data, tmp_path, 2), steps=20)


@pytest.mark.parametrize("size", SIZES)
def test_the_same_ranks_go_on_to_the_last_bit(size: int, corpus: Path, tmp_path: Path) -> None:
    """With dropout: every rank has random numbers of its own, and they come back."""
    recipe = small_recipe(lanes=8, accumulate=2, steps=12, save_every=5, keep=9)
    succeeded(on_ranks(size, tmp_path, segue.train, recipe, corpus, tmp_path / "whole"))
    part = cut_to(tmp_path / "whole", tmp_path / "part", 5)
    succeeded(on_ranks(size, tmp_path, segue.resume, part))
    files = [(run / "checkpoints/step-00000012" / WEIGHTS).read_bytes() for run in (tmp_path / "whole", part)]
    assert files[0] == files[1]
    rows = [
        read_tensors(tmp_path / f"whole/checkpoints/step-00000005/lanes-{rank:05d}.safetensors")
        for rank in range(size)
    ]
    assert not torch.equal(rows[0]["random/cpu"], rows[1]["random/cpu/1"])


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_a_run_goes_on_with_another_number_of_ranks(
    before: int, after: int, corpus: Path, tmp_path: Path
) -> None:
    """Lanes are dealt again, and memory goes with its lane, wherever chunks are cut."""
    recipe = plain_recipe(accumulate=2, steps=20, save_every=7)

    def on(size: int, work: Callable[..., Any], *values: Any) -> None:
        if size == 1:
            work(*values)
        else:
            succeeded(on_ranks(size, tmp_path, work, *values))

    on(before, segue.train, recipe, corpus, tmp_path / "whole")
    part = cut_to(tmp_path / "whole", tmp_path / "part", 7)
    on(after, partial(segue.resume, part))
    torch.testing.assert_close(weights(part, 20), weights(tmp_path / "whole", 20), rtol=0, atol=1e-9)
    assert segue.load(part).model.config == recipe.model


READINGS = [
    Reading(
        segment=5, reach=Reach(memory=7)
    ),  # seams show: what is read first is memory and segment for each layer
    Reading(segment=4, reach=Reach(memory=9, span=6, clamp=4)),  # they do not: the span for each layer
    Reading(segment=6, reach=Reach(memory=0)),
]


def test_a_stream_that_ranks_share_is_scored_the_same(corpus: Path, tmp_path: Path) -> None:
    model, stream = build(shape(vocab=256)), open_corpus(corpus).stream("train")
    scores = [evaluate(model, stream, reading, limit=700).nats for reading in READINGS]
    assert [reading.overlap(2) for reading in READINGS] == [25, 12, 12]
    succeeded(on_ranks(2, tmp_path, score_shared, model, stream, scores))
    succeeded(on_ranks(3, tmp_path, score_shared, model, stream, scores))


def score_shared(model: segue.TransformerXL, stream: Stream, scores: list[float]) -> None:
    """Ranks of one lane, and of two; with a stream too short for all of them, too."""
    with process_group() as ranks:
        for reading, wanted in zip(READINGS, scores, strict=True):
            for lanes in (1, 2):
                score = evaluate(model, stream, reading, lanes=lanes, limit=700, ranks=ranks)
                assert score.nats == pytest.approx(wanted, rel=1e-12)
                assert score.tokens == 700
        few = evaluate(model, stream, READINGS[0], limit=3, ranks=ranks)
        assert few.nats == pytest.approx(evaluate(model, stream, READINGS[0], limit=3).nats, rel=1e-12)
