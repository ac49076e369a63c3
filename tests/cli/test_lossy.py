"""Tokenizers that are not lossless: commands report bits per token, never bits per byte."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segue
from runs import make_corpus, small_recipe
from segue.checkpoint import Bundle
from segue.cli import app
from segue.cli.train import _validated
from segue.config import Reach, Reading, XLConfig
from segue.errors import SegueError
from segue.text.corpus import open_corpus
from segue.training.loop import Event


def told(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    if isinstance(done.exception, SegueError):
        return str(done.exception)
    assert done.exit_code == 0, done.exception
    return done.output


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("lossy"), tokenizer="words")


@pytest.fixture(scope="module")
def bundle(data: Path) -> Path:
    corpus = open_corpus(data)
    model = segue.TransformerXL(XLConfig(vocab=corpus.header.vocab, width=8, layers=1, heads=2))
    folder = data.parent / "bundle"
    Bundle(model, Reading(segment=8, reach=Reach(memory=8)), corpus.tokenizer).save(folder)
    return folder


def test_eval(data: Path, bundle: Path) -> None:
    facts = json.loads(told("eval", bundle, "--data", data, "--json"))
    assert (facts["bits_per_byte"], facts["bytes"]) == (None, None)
    assert facts["bits_per_token"] > 0
    said = told("eval", bundle, "--data", data)
    assert "bits per token, perplexity" in said
    assert "byte" not in said


def test_score(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the sea\nunheard of\n")
    rows = [json.loads(line) for line in told("score", bundle, tmp_path / "text", "--json").splitlines()]
    assert [row["bits_per_byte"] for row in rows] == [None, None]
    plain = [line.split("\t") for line in told("score", bundle, tmp_path / "text").splitlines()]
    assert [float(line[2]) for line in plain] == pytest.approx(
        [row["bits_per_token"] for row in rows], abs=6e-4
    )


def test_training(data: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    recipe = small_recipe(steps=2, validate_every=1, validate_tokens=20)
    model = recipe.model.model_copy(update={"vocab": open_corpus(data).header.vocab})
    segue.train(recipe.model_copy(update={"model": model}), data, tmp_path / "run", watch=events.append)
    values = {event.kind: event.values for event in events}
    assert values["begin"]["bytes_per_token"] is None
    assert "bits_per_byte" not in values["valid"]
    assert _validated(values["valid"]).startswith("perplexity")


def test_the_lab(data: Path, tmp_path: Path) -> None:
    said = told("lab", "positions", "--quick", "--data", data, "-o", tmp_path / "lab")
    assert "the lab measures bits per byte" in said
