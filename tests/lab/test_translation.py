"""The comparison of translators: equal tuning, the ablated parts, verdicts that can fail, from pairs to the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from runs import make_corpus, make_pairs
from segue.cli import app
from segue.errors import InputError
from segue.footprint import parameters
from segue.lab import translation, translators
from segue.lab.experiment import Setting, Verdict
from segue.lab.record import measured
from segue.lab.report import write_report
from segue.lab.translators import FULL, SIDES, TRIES, Averaged, Sizes, config_of, schedule_of, tries_of
from segue.nn.models import build_translator
from segue.text.pairs import open_pairs
from segue.training.optim import learning_rate_at

TINY = Sizes(2, 32, 8, 1, 8, tested=2, lengths=(4, 8), repeats=1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("pairs"))


def test_every_side_has_as_many_tries() -> None:
    assert {len(tries_of(side)) for side in SIDES.values()} == {len(TRIES)}


def test_sides_have_about_as_many_parameters(pairs: Path) -> None:
    header = open_pairs(pairs).header.model_copy(update={"vocab": 4002})
    shapes = [config_of(side, FULL, replace(open_pairs(pairs), header=header)) for side in SIDES.values()]
    sizes = [parameters(shape) for shape in shapes]
    assert max(sizes) < 1.15 * min(sizes)


def test_without_warm_up_the_rate_only_falls() -> None:
    schedule = schedule_of(
        SIDES["Transformer as published"], 100, {"optimizer": "adam", "learning_rate": 1.0}
    )
    usual = [learning_rate_at(step, schedule) for step in range(100)]
    at_once = [translators.without_warm_up(step, schedule) for step in range(100)]
    assert usual[0] < usual[5] < usual[9] == max(usual)
    assert at_once[0] == max(at_once) == usual[9]
    assert at_once[9:] == usual[9:]


def test_averaged_weights_are_the_mean_of_the_last_snapshots(pairs: Path) -> None:
    model = build_translator(config_of(SIDES["RNN with attention"], TINY, open_pairs(pairs)))
    average, weight = Averaged(model, 50), next(model.parameters())
    for step in range(1, 51):
        torch.nn.init.constant_(weight, float(step))
        average.after(step)
    average.load()
    assert weight.unique().tolist() == [(42 + 44 + 46 + 48 + 50) / 5]


def figures(**bleu: list[float]) -> dict[str, Any]:
    """Results with these BLEU of three seeds; all others have 20."""

    def side(name: str) -> dict[str, Any]:
        scores = [
            {"bleu": one, "chrf": 40.0, "nats": 2.0, "signature": "s"} for one in bleu.get(name, [20.0] * 3)
        ]
        last = [{"bleu": 20.0, "chrf": 40.0, "nats": 2.0, "signature": "s"}] * 3
        return {
            "chosen": {"optimizer": "adam", "learning_rate": 1e-3},
            "parameters": 1,
            "seeds": [
                {"seconds": 1.0, "averaged": one, "last": other}
                for one, other in zip(scores, last, strict=True)
            ],
        }

    times = {name: {"one": [1.0, 2.0], "again": [1.0, 2.0], "two": [1.0, 1.0]} for name in translation.TIMED}
    keys = {"steps": 1, "tokens": 1, "pairs": 1, "tested": 1, "split": "test", "lengths": [8, 16]}
    return {**keys, "sides": {name: side(name) for name in SIDES}, "times": times}


def shown(results: dict[str, Any]) -> set[str]:
    blocks = translation.tell(results)
    return {block.claim for block in blocks if isinstance(block, Verdict) and block.shown}


def test_equal_translators_show_nothing() -> None:
    assert shown(figures()) == set()
    assert shown(figures(Transformer=[20.5, 20.6, 20.4])) == set()  # within the margin
    assert shown(figures(Transformer=[25.0, 25.0, 19.9])) == set()  # not with every seed
    assert len(shown(figures(Transformer=[22.0, 23.0, 24.0]))) == 1


def test_from_pairs_to_page(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacrebleu")
    monkeypatch.setattr(translation, "QUICK", TINY)
    corpus = make_corpus(tmp_path / "data", documents=20, words=20)
    setting = Setting(corpus, tmp_path, quick=True, pairs=pairs)
    record, _ = measured(translation.EXPERIMENT, setting, "")
    assert list(record.results["sides"]) == list(SIDES)
    assert record.setting["pairs"] == open_pairs(pairs).header.checksums
    page, notes = write_report(tmp_path, draw=["translation"])
    assert '<section id="translation">' in page.read_text()
    assert notes == []
    monkeypatch.setattr(translation, "trained", None)  # all of it is in the cache
    assert translation.measure(setting)["sides"] == record.results["sides"]


def test_the_full_version_tries_all_settings(pairs: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "data", documents=20, words=20)
    setting = Setting(corpus, tmp_path, pairs=pairs)
    tries = translation._tries(setting, "RNN without attention", TINY)
    assert [{key: one[key] for key in ("optimizer", "learning_rate")} for one in tries] == list(TRIES)
    assert len({one["nats"] for one in tries}) == len(TRIES)


def test_without_pairs_it_is_skipped_with_advice(tmp_path: Path) -> None:
    reason = translation.EXPERIMENT.skipped(Setting(tmp_path, tmp_path))
    assert "prepare-pairs" in reason
    assert "--pairs" in reason


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "data", documents=20, words=20)
    given = ["--data", str(corpus), "-o", str(tmp_path / "lab")]
    for name, option in (("translation", "--pairs"), ("heads", "--encoder")):
        failed = CliRunner().invoke(app, ["lab", name, *given])
        assert isinstance(failed.exception, InputError)
        assert f"{name} cannot be measured" in str(failed.exception)
        assert option in str(failed.exception)
