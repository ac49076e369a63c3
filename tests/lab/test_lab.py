"""The lab's framework: records are reused, reported and drawn, missing ones are measured, other versions are marked."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segue
from runs import make_corpus
from segue.cli import app
from segue.cli import lab as lab_command
from segue.errors import InputError
from segue.lab import trained, tuning
from segue.lab.cache import cached
from segue.lab.experiment import TITLES, Experiment, Picture, Setting, Table, Verdict, experiment
from segue.lab.record import measured, read_record, record_path
from segue.lab.report import check_page, write_report

TINY = trained.Budget(width=8, layers=1, heads=2, lanes=4, segment=8, steps=3, scored=1000)
RUN = CliRunner()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("lab"), documents=120, words=60)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "QUICK", TINY)


def counting(
    name: str = "positions", version: int = 1, cacheable: bool = True
) -> tuple[Experiment, list[int]]:
    """An experiment that counts how often it was measured."""
    calls: list[int] = []

    def measure(setting: Setting) -> dict[str, object]:
        calls.append(setting.seed)
        return {"values": (1.5, 2.5)}

    counted = Experiment(name, "a claim", measure, lambda _: [], lambda _: [], version, cacheable)
    return counted, calls


def test_what_was_measured_with_the_same_setting_is_not_measured_again(tmp_path: Path, corpus: Path) -> None:
    shown, calls = counting()
    record, fresh = measured(shown, Setting(corpus, tmp_path, quick=True), "segue lab positions")
    assert fresh
    assert record.results == {"values": [1.5, 2.5]}  # as read from JSON, also the first time
    assert measured(shown, Setting(corpus, tmp_path, quick=True), "again") == (record, False)
    assert measured(shown, Setting(corpus, tmp_path, quick=True, seed=5), "other")[1]
    assert measured(shown, Setting(corpus, tmp_path), "full")[1]
    assert calls == [0, 5, 0]
    assert set(record.versions) >= {"segue", "python", "torch"}
    assert record.machine["threads"] >= 1
    assert record.setting["data"]["checksums"]


def test_another_version_of_the_experiment_measures_again(tmp_path: Path, corpus: Path) -> None:
    setting = Setting(corpus, tmp_path, quick=True)
    measured(counting()[0], setting, "")
    assert measured(counting(version=2)[0], setting, "")[1]
    assert measured(counting(version=2, cacheable=False)[0], setting, "")[1]


def test_three_seeds_or_one(corpus: Path, tmp_path: Path) -> None:
    assert Setting(corpus, tmp_path, seed=3).seeds == (3, 4, 5)
    assert Setting(corpus, tmp_path, seed=3, quick=True).seeds == (3,)


def test_a_model_is_trained_once_and_goes_on_where_it_was_killed(tmp_path: Path, corpus: Path) -> None:
    told: list[tuple[str, int, int]] = []
    setting = Setting(corpus, tmp_path, quick=True, report=lambda *words: told.append(words))
    recipe = trained.recipe_for(setting, seed=0)
    run = trained.trained_run(setting, recipe, "a model")
    assert told == [("training a model", step, 3) for step in (1, 2, 3)]
    weights = trained.trained(setting, recipe, "a model").model.state_dict()
    assert len(told) == 3
    log = run / "log.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]) + '{"kind": "do')
    for checkpoint in (run / "checkpoints").iterdir():  # killed before it could save
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    again = trained.trained(setting, recipe, "a model").model.state_dict()
    assert len(told) == 6
    assert all(again[name].equal(weight) for name, weight in weights.items())
    other = trained.recipe_for(setting, seed=1)
    assert trained.run_name(setting, other) != trained.run_name(setting, recipe)


def test_every_side_tries_the_same_settings_and_keeps_its_best(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "FULL", TINY)
    setting = Setting(corpus, tmp_path)
    tuned = tuning.tuned(setting, trained.recipe_for(setting, seed=0), "a side")
    assert [(one["optimizer"], one["learning_rate"]) for one in tuned.tries] == [
        (one["optimizer"], one["learning_rate"]) for one in tuning.TRIES
    ]
    best = min(tuned.tries, key=lambda one: one["bits_per_byte"])
    train = tuned.seeded(2).train
    assert (train.optimizer, train.learning_rate, train.seed) == (best["optimizer"], best["learning_rate"], 2)
    assert train.steps == TINY.steps
    quick = Setting(corpus, tmp_path, quick=True)
    assert tuning.tuned(quick, tuned.recipe, "a side").tries == []


def test_a_corpus_too_small_to_score_is_said(tmp_path: Path) -> None:
    setting = Setting(make_corpus(tmp_path, documents=24), tmp_path, quick=True)
    with pytest.raises(InputError, match="has a test split of .* tokens; the lab needs 1,001 or more"):
        trained.scored_tokens(setting)


def test_an_unknown_experiment_is_told_what_there_is() -> None:
    with pytest.raises(InputError, match="no experiment 'sped'; there are speed, ablation.*, or all"):
        experiment("sped")


@pytest.mark.parametrize("name", TITLES)
def test_every_title_has_its_experiment(name: str) -> None:
    chosen = experiment(name)
    assert chosen.name == name
    assert chosen.claim.endswith(".")


QUICKEST = ("attention", "ablation", "extrapolation", "fragmentation", "confusion", "positions", "results")


def test_from_a_command_to_a_page(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["lab", "all", "--quick", "--data", str(corpus), "-o", str(tmp_path), "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["segue", *words])
    monkeypatch.setattr(lab_command, "TITLES", dict.fromkeys(QUICKEST, ""))  # the fastest ones
    done = RUN.invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for name in QUICKEST:
        assert json.loads((tmp_path / f"{name}.json").read_text())["command"].startswith(
            "segue lab all --quick"
        )
    page = (tmp_path / "index.html").read_text()
    assert [name for name in TITLES if f'<section id="{name}">' in page] == [
        n for n in TITLES if n in QUICKEST
    ]
    assert not re.search(r"(src|href)=\"(?!#)", page.replace('xlink:href="data:', ""))  # nothing is fetched
    assert len(set(re.findall(r' id="([^"]+)"', page))) == len(re.findall(r' id="([^"]+)"', page))
    for name in ("ablation", "positions-table", "attention-maps"):
        assert (tmp_path / "pictures" / f"{name}.png").stat().st_size > 1000
        assert "<svg" in (tmp_path / "pictures" / f"{name}.svg").read_text()


def test_results_of_another_version_are_drawn_and_it_is_said(tmp_path: Path, corpus: Path) -> None:
    measured(experiment("positions"), Setting(corpus, tmp_path, quick=True), "")
    path = record_path(tmp_path, "positions")
    path.write_text(path.read_text().replace(f'"segue": "{segue.__version__}"', '"segue": "0.0.1"'))
    done = RUN.invoke(app, ["lab", "all", "--only-report", "-o", str(tmp_path)], catch_exceptions=False)
    assert f"note: positions: made by segue 0.0.1, and this is {segue.__version__}" in done.output
    page = (tmp_path / "index.html").read_text()
    assert "These results were made by segue 0.0.1" in page
    assert page.count("<figure") == 2
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "results": {"of": "another shape"}}))
    write_report(tmp_path, draw=[])
    assert "This version cannot draw results of that shape" in (tmp_path / "index.html").read_text()


def test_a_page_of_nothing_and_a_damaged_record_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no results yet; run: segue lab all --quick"):
        write_report(tmp_path, draw=[])
    record_path(tmp_path, "speed").write_text("{")
    with pytest.raises(InputError, match="speed.json is no JSON"):
        read_record(tmp_path, "speed")


def test_json_nested_too_deeply_is_said_in_one_line(tmp_path: Path, corpus: Path) -> None:
    deep = '{"made": ' + "[" * 100_000
    record_path(tmp_path, "speed").write_text(deep)
    with pytest.raises(InputError, match="speed.json is nested too deeply.*; remove it and measure again"):
        read_record(tmp_path, "speed")
    setting = Setting(corpus, tmp_path, quick=True)
    cached(setting, __name__, {}, lambda: 1)
    (file,) = (tmp_path / "runs").iterdir()
    for text, said in ((deep, "nested too deeply"), ("{", "is no JSON"), ("{}", "holds nothing; remove it")):
        file.write_text(text)
        with pytest.raises(InputError, match=said):
            cached(setting, __name__, {}, lambda: 1)


def test_a_log_nested_too_deeply_is_that_of_an_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("[" * 100_000 + "\n")
    assert not trained._finished(tmp_path)


def test_without_matplotlib_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = RUN.invoke(app, ["lab", "positions", "-o", str(tmp_path / "lab")])
    assert str(done.exception) == "figures need the viz extra: pip install 'segue-lm[viz]'"
    assert not (tmp_path / "lab").exists()


def test_words_in_results_cannot_become_markup() -> None:
    from segue.lab.report import _block

    hostile = "<b>&"
    for block in (hostile, Table([hostile], [[hostile]], hostile), Verdict(hostile, True, hostile)):
        assert "<b>&" not in _block(block)
        assert "&lt;b&gt;&amp;" in _block(block)


def test_a_figure_takes_the_colours_of_the_page() -> None:
    from segue.lab.drawing import INK, LINE, canvas, inline, style

    with style("a"):
        figure, (axis,) = canvas()
        axis.plot([1, 2])
        axis.set(title="a title")
    drawn = inline(Picture("a", "caption", figure))
    assert "var(--ink)" in drawn
    assert "var(--line)" in drawn
    assert INK not in drawn
    assert LINE not in drawn
    assert "a title" in drawn  # as text, not as outlines


def test_a_page_that_is_not_the_labs_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<title>my site</title>")
    with pytest.raises(InputError, match=r"index.html is not a page of the lab; nothing was overwritten"):
        write_report(tmp_path, [])
    assert (tmp_path / "index.html").read_text() == "<title>my site</title>"


def test_a_forged_record_is_named(tmp_path: Path) -> None:
    committed = json.loads((Path(__file__).parents[2] / "docs/results/lab/speed.json").read_text())
    path = tmp_path / "speed.json"
    for change, said in (
        ({"results": {}}, "speed.json cannot be drawn"),
        ({"experiment": "words"}, "speed.json is a record of 'words'"),
        ({"format": "mine"}, "speed.json is no record of the lab: Record"),
    ):
        path.write_text(json.dumps(committed | change))
        with pytest.raises(InputError, match=said):
            write_report(tmp_path, [])


def test_strangers_pictures_and_files_stay(tmp_path: Path) -> None:
    picture = tmp_path / "mine" / "pictures" / "speed.png"
    picture.parent.mkdir(parents=True)
    picture.write_text("mine")
    with pytest.raises(InputError, match="pictures is not the lab's; nothing was overwritten"):
        check_page(tmp_path / "mine")
    with pytest.raises(InputError, match="is a file; -o needs a folder"):
        check_page(picture)
    picture.unlink()
    check_page(tmp_path / "mine")  # an empty folder is nobody's


@pytest.mark.parametrize("option", lab_command.USERS)
def test_an_option_that_an_experiment_would_ignore_is_refused(option: str, tmp_path: Path) -> None:
    done = RUN.invoke(app, ["lab", "positions", option, str(tmp_path), "-o", str(tmp_path / "lab")])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(f"{option} is for {lab_command.USERS[option][0]}")
    assert set(lab_command.USERS[option]) <= set(TITLES)
    assert not (tmp_path / "lab").exists()
