"""`segue eval` tells all that a figure depends on, and notices data that changed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segue
from runs import make_corpus, small_recipe
from segue.cli import app
from segue.errors import InputError
from segue.lab.results import given_runs
from segue.training.run import read_log


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("facts")
    corpus = make_corpus(folder, documents=20, words=40)
    return segue.train(small_recipe(steps=2), corpus, folder / "run")


def evaluated(run: Path, *words: object) -> str:
    done = CliRunner().invoke(app, ["eval", str(run), *map(str, words), "--limit", "40", "--threads", "1"])
    if done.exception:
        raise done.exception
    return done.output


def test_settings_of_adaptation_and_precision_are_told(run: Path) -> None:
    facts = json.loads(evaluated(run, "--cache", 20, "--cache-weight", 0.5, "--json"))
    assert (facts["cache"], facts["cache_weight"], facts["cache_flatness"]) == (20, 0.5, 0.3)
    assert "cache 20, cache weight 0.5, cache flatness 0.3" in evaluated(
        run, "--cache", 20, "--cache-weight", 0.5
    )
    assert "learning rate 0.0003, decay 0.001" in evaluated(run, "--dynamic", "--learning-rate", 3e-4)
    assert json.loads(evaluated(run, "--int8", "--json"))["int8"] is True
    assert ", int8" in evaluated(run, "--int8")
    assert ", pinned 2" in evaluated(run, "--pinned", 2, "--clamp", 8)


def test_a_sliding_window_has_no_memory(run: Path) -> None:
    assert json.loads(evaluated(run, "--sliding", "--json"))["memory"] == 0
    assert "sliding, segment 8, clamp none" in evaluated(run, "--sliding", "--segment", 8)


def test_data_that_changed_or_went_is_noticed(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, documents=20, words=40)
    run = segue.train(small_recipe(steps=2), corpus, tmp_path / "run")
    assert "has changed" not in evaluated(run)
    corpus.rename(tmp_path / "gone")
    with pytest.raises(InputError, match="which is not there any more; use --data"):
        evaluated(run)
    other = make_corpus(tmp_path / "other", documents=21, words=40)
    other.rename(corpus)
    assert f"{corpus} has changed since {run} was trained on it" in evaluated(run)


def test_runs_of_the_lab_are_taken_once_and_told_apart(run: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(run)
    assert [one.name for one in given_runs([run, run / ".." / "run"])] == ["run"]
    segue.train(small_recipe(steps=1), make_corpus(tmp_path), tmp_path / "twin" / "run")
    assert [one.name for one in given_runs([run, tmp_path / "twin" / "run"])] == [
        str(run),
        str(tmp_path / "twin" / "run"),
    ]


@pytest.mark.parametrize("damage", [b'{"kind": "st', b"\xff", b"[" * 100_000])
def test_a_damaged_log_is_named(damage: bytes, run: Path, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes((run / "log.jsonl").read_bytes() + damage)
    with pytest.raises(InputError, match="log.jsonl is damaged"):
        read_log(tmp_path)
    (tmp_path / "log.jsonl").unlink()
    with pytest.raises(InputError, match=r"has no log.jsonl"):
        read_log(tmp_path)
