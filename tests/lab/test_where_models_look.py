"""Attention statistics: untrained weights show nothing, and the figures are those of the recorded weights."""

from pathlib import Path

import pytest
import torch

from runs import make_corpus
from segue.config import XLConfig
from segue.lab import attention, trained
from segue.lab.experiment import Results, Setting, Verdict
from segue.lab.statistics import mean

BUDGET = trained.Budget(width=16, layers=2, heads=2, lanes=4, segment=16, steps=2, scored=1000)
SHAPE = XLConfig(vocab=256, width=16, layers=2, heads=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("attention"), documents=120, words=60)


@pytest.fixture
def setting(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(trained, "QUICK", BUDGET)
    return Setting(corpus, tmp_path, quick=True)


def verdicts(results: Results) -> list[Verdict]:
    return [block for block in attention.tell(results) if isinstance(block, Verdict)]


@pytest.mark.parametrize("seed", [0, 3, 100, 101, 102, 103])
def test_untrained_weights_in_the_place_of_trained_ones_show_nothing(seed: int, setting: Setting) -> None:
    """Neither the seeds that it is compared with (0 and 3) nor others."""
    results = attention.compared(setting, attention.untrained_model(SHAPE, seed))
    assert [verdict.shown for verdict in verdicts(results)] == [False, False, False]


def test_weights_that_choose_show_it(setting: Setting) -> None:
    """Sharp heads attend to single states in memory."""
    model = attention.untrained_model(SHAPE, 100)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "attention" in name and weight.dim() > 1:
                weight.mul_(30)
    crosses, *_ = verdicts(attention.compared(setting, model))
    assert crosses.shown


def test_the_verdicts_of_a_trained_model_are_computed_beside_untrained_ones(setting: Setting) -> None:
    results = attention.measure(setting)
    assert [one["seed"] for one in results["untrained"]] == [0, 1, 2, 3]
    assert len(verdicts(results)) == 3
    for verdict in verdicts(results):
        assert "with untrained weights" in verdict.because


@pytest.mark.parametrize("what", attention.COMPARED)
def test_the_margin_is_from_the_highest_of_the_untrained(what: str, setting: Setting) -> None:
    results = attention.compared(setting, attention.untrained_model(SHAPE, 100))
    ours = attention.figures(results)[what]
    for share, beyond in ((0.99, True), (1.01, False)):
        low, high = 0.0, share * ours / attention.MARGIN
        results["untrained"] = [{what: low}, {what: high}]
        assert attention._beyond(results, what) == beyond


def test_the_strongest_state_in_memory_is_the_largest_weight_there() -> None:
    weights = torch.tensor([[[0.1, 0.3, 0.6, 0.0], [0.5, 0.1, 0.2, 0.2]]])  # (H, T, S), of S two in memory
    sums = attention._Sums(memory=2)
    sums.add({"blocks.0.attention": weights[None]}, {"blocks.0.attention": {}})
    assert sums.strongest()[0].tolist() == pytest.approx([mean([0.3, 0.5])])
    assert sums.in_memory()[0].tolist() == pytest.approx([mean([0.4, 0.6])])
