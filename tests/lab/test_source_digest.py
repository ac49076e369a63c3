"""Cached measurements belong to the code that made them: any changed byte of that code changes the key."""

import json
import shutil
from pathlib import Path

import pytest

from runs import make_corpus
from segue.lab import source_digest, trained
from segue.lab.cache import cached
from segue.lab.experiment import TITLES, Experiment, Setting
from segue.lab.record import measured, read_record, record_path, version_mismatch
from segue.lab.source_digest import PACKAGE, digest, modules


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that a test may change."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(PACKAGE, tmp_path / "segue", ignore=ignored))


def changed(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n")


@pytest.mark.parametrize(
    "file",
    [
        "lab/attention.py",
        "lab/trained.py",
        "infer/trace.py",
        "nn/xl.py",
        "training/run.py",
        "config/reading.py",
    ],
)
def test_a_byte_of_any_module_that_an_experiment_imports_changes_its_key(file: str, package: Path) -> None:
    before = digest("segue.lab.attention", package)
    changed(package / file)
    assert digest("segue.lab.attention", package) != before


@pytest.mark.parametrize(
    "file", ["lab/drawing.py", "lab/report.py", "lab/report.html", "lab/speed.py", "cli/info.py"]
)
def test_drawing_and_what_is_not_imported_do_not_change_it(file: str, package: Path) -> None:
    before = digest("segue.lab.attention", package)
    changed(package / file)
    assert digest("segue.lab.attention", package) == before


def test_published_figures_count_for_those_who_read_them(package: Path) -> None:
    """They decide which lengths and rows are measured."""
    names = ("segue.lab.speed", "segue.lab.attention")
    before = [digest(name, package) for name in names]
    changed(package / "lab" / "published.json")
    after = [digest(name, package) for name in names]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True]


def test_training_depends_on_no_experiment() -> None:
    files = modules("segue.training.run", PACKAGE)
    assert {"segue.training.run", "segue.training.loop", "segue.nn.xl", "segue.text.corpus"} <= set(files)
    assert not [name for name in files if name.startswith(("segue.lab", "segue.cli"))]


@pytest.mark.parametrize("name", TITLES)
def test_every_experiment_is_found_with_what_it_imports(name: str) -> None:
    files = modules(f"segue.lab.{name}", PACKAGE)
    assert {f"segue.lab.{name}", "segue.lab.experiment"} <= set(files)
    assert "segue.lab.drawing" not in files


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("sources"), documents=120, words=60)


COUNTED = Experiment("positions", "a claim", lambda _: {"values": [1.5]}, lambda _: [], lambda _: [])
"""A stand-in for the real experiment, which takes seconds."""


def other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_digest, "digest", lambda module, _package: f"another {module}")
    source_digest.digest_here.cache_clear()


@pytest.fixture(autouse=True)
def _forget() -> None:
    source_digest.digest_here.cache_clear()


def test_other_code_measures_trains_and_makes_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(corpus, tmp_path, quick=True)
    shown, recipe = COUNTED, trained.recipe_for(setting, seed=0)
    record, _ = measured(shown, setting, "")
    assert record.sources == digest("segue.lab.positions", PACKAGE)
    assert not measured(shown, setting, "")[1]
    run, made = trained.run_name(setting, recipe), cached(setting, __name__, {"a": 1}, lambda: "old")
    other_code(monkeypatch)
    assert measured(shown, setting, "")[1]
    assert trained.run_name(setting, recipe) != run
    assert (made, cached(setting, __name__, {"a": 1}, lambda: "new")) == ("old", "new")


def test_a_record_of_other_code_or_of_none_is_shown_without_alarm(corpus: Path, tmp_path: Path) -> None:
    setting, path = Setting(corpus, tmp_path, quick=True), record_path(tmp_path, "positions")
    measured(COUNTED, setting, "")
    values = json.loads(path.read_text())
    for digest_of_it in ({"sources": "of other code"}, {}):
        path.write_text(json.dumps({key: values[key] for key in values if key != "sources"} | digest_of_it))
        record = read_record(tmp_path, "positions")
        assert record is not None
        assert record.sources == digest_of_it.get("sources", "")
        assert version_mismatch(record, COUNTED) == ""
    assert measured(COUNTED, setting, "")[1]
