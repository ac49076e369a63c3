"""Experiments from measurement to page, with budgets so small that only the code is tested, not the claims."""

from pathlib import Path

import pytest

from runs import make_corpus
from segue.lab import adaptation, algorithms, complexity, gradients, lengths, parts, recl, trained
from segue.lab.cache import cached
from segue.lab.experiment import Setting, Table, Verdict, experiment
from segue.lab.record import measured
from segue.lab.report import write_report
from segue.lab.train_loop import short_schedule

TINY = trained.Budget(width=8, layers=1, heads=2, lanes=4, segment=8, steps=2, scored=1000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("whole"), documents=120, words=60)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUICK", "FULL"):
        monkeypatch.setattr(trained, name, TINY)
        monkeypatch.setattr(lengths, name, lengths.Sizes(2, 8, 1, texts=4, length=20, lanes=2))
        monkeypatch.setattr(recl, name, recl.Sizes(TINY, longest=32, blocks=4, size=4, resamples=3))
        monkeypatch.setattr(parts, name, parts.Sizes(steps=2, lanes=2, segment=8, scored=64, curve_points=1))
        reaches = {"k": (2, 3, 5), "r": (4, 8, 16)}
        monkeypatch.setattr(complexity, name, complexity.Sizes((8, 16, 32), (4, 8, 16), reaches, 4, 8, 1))
    monkeypatch.setattr(gradients, "LENGTH", 12)
    monkeypatch.setattr(gradients, "WIDTH", 8)
    monkeypatch.setattr(complexity, "PATH_LENGTHS", (8, 16))
    monkeypatch.setattr(algorithms, "short_schedule", lambda _steps, rate: short_schedule(1, rate))
    monkeypatch.setattr(adaptation, "SIZES", {True: (50, 60, 70), False: (50, 60, 70)})


@pytest.mark.parametrize(
    "name", ["recl", "lengths", "gradients", "complexity", "algorithms", "parts", "adaptation"]
)
def test_quick_ones_from_measurement_to_page(name: str, corpus: Path, tmp_path: Path) -> None:
    shown = experiment(name)
    record, _ = measured(shown, Setting(corpus, tmp_path, quick=True), "")
    kinds = [type(block) for block in shown.tell(record.results)]
    assert Verdict in kinds
    assert Table in kinds
    page, notes = write_report(tmp_path, draw=[name])
    assert f'<section id="{name}">' in page.read_text()
    assert notes == []
    assert (tmp_path / "pictures" / f"{name}.png").stat().st_size > 1000


def test_a_full_one_tunes_every_side_and_shows_three_seeds(corpus: Path, tmp_path: Path) -> None:
    shown = experiment("parts")
    record, _ = measured(shown, Setting(corpus, tmp_path), "")
    assert {len(side["tries"]) for side in record.results["variants"].values()} == {len(parts.LEARNING_RATES)}
    told = " ".join(block.because for block in shown.tell(record.results) if isinstance(block, Verdict))
    assert "each of 3 seeds" in told
    assert "±" in told


def test_what_was_made_on_the_way_is_not_made_again(corpus: Path, tmp_path: Path) -> None:
    setting, calls = Setting(corpus, tmp_path, quick=True), []

    def make() -> list[float]:
        calls.append(1)
        return [0.5]

    assert cached(setting, __name__, {"a": 1}, make) == cached(setting, __name__, {"a": 1}, make) == [0.5]
    assert len(calls) == 1
    cached(setting, __name__, {"a": 2}, make)
    assert len(calls) == 2
