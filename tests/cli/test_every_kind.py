"""Every kind of model goes the whole way by the same commands: train, resume, eval, generate, score, translate."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from segue.checkpoint import checkpoints
from segue.cli import app
from segue.kinds import KINDS
from segue.recipe import recipe_of, recipe_toml
from segue.text.pairs import open_pairs

TRANSFORMER = {"width": 12, "heads": 2, "feedforward": 16, "dropout": 0.1}
XL = {"kind": "xl", "layers": 2, **TRANSFORMER}
STEPS = {"steps": 3, "halting": "act", "halt_bias": -0.5, **TRANSFORMER}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, **TRANSFORMER}
CONVOLUTIONS = {"kind": "convolutional", "width": 12, "layers": [[12, 3, 1], [12, 2, 2]]}

LANGUAGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "xl": (XL, {}),
    "xl, windowed": (XL, {"span": 6}),
    "xl, pinned": (XL, {"span": 6, "pinned": 2, "clamp": 8}),
    "xl, strided": ({**XL, "pattern": "strided", "stride": 3, "combine": "heads"}, {}),
    "xl, fixed": ({**XL, "pattern": "fixed", "stride": 4, "summary": 2}, {}),
    "xl, rotary": ({**XL, "encoding": "rotary"}, {}),
    "xl, alibi": ({**XL, "encoding": "alibi"}, {}),
    "al-rfou": (
        {**XL, "encoding": "per-layer", "max_positions": 16, "tied": False},
        {"memory": 0, "positions": "restart", "intermediate": 4, "ahead": 2},
    ),
    "lstm": ({"kind": "recurrent", "width": 12}, {}),
    "linear": ({"kind": "kernel", "layers": 2, **TRANSFORMER}, {}),
    "performer": (
        {"kind": "kernel", "layers": 2, "features": "performer", "random_features": 8, **TRANSFORMER},
        {},
    ),
    "universal": ({"kind": "universal", **STEPS}, {"ponder": 0.01}),
    "gcnn": ({**CONVOLUTIONS, "gate": "glu"}, {}),
    "tcn": ({**CONVOLUTIONS, "gate": "tcn"}, {}),
    "qrnn": ({**CONVOLUTIONS, "gate": "qrnn"}, {}),
}
TRANSLATION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "transformer": ({"kind": "seq2seq", **LAYERS}, {}),
    "rnn": ({"kind": "recurrent-seq2seq", "width": 12, "layers": 1}, {}),
    "universal": ({"kind": "universal-seq2seq", **STEPS}, {"ponder": 0.01}),
}


def test_no_kind_is_forgotten() -> None:
    tried = {model["kind"] for model, _ in (*LANGUAGE.values(), *TRANSLATION.values())}
    assert tried == {name for name, kind in KINDS.items() if kind.task != "encoding"}


def told(*words: object, given: str | None = None) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], input=given, env={"SEGUE_THREADS": "1"})
    assert result.exit_code == 0, result.exception
    return result.stdout


def train_and_resume(recipe: dict[str, Any], data: Path, folder: Path) -> Path:
    """A run of four steps, resumed for two more."""
    (folder / "recipe.toml").write_text(recipe_toml(recipe_of(recipe)))
    told("train", folder / "recipe.toml", "--data", data, "-o", folder / "run")
    told("train", "--resume", folder / "run", "--set", "train.steps=6")
    assert checkpoints(folder / "run")[-1].name == "step-00000006"
    return folder / "run"


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models(name: str, corpus: Path, tmp_path: Path) -> None:
    model, train = LANGUAGE[name]
    shared = {"lanes": 4, "segment": 8, "memory": 8, "steps": 4, "schedule": "constant", "validate_every": 4}
    settings = {**shared, "learning_rate": 1e-2, "validate_tokens": 200, **train}
    reach = {key: settings[key] for key in ("memory", "span", "positions") if key in settings}
    values = {"model": {"vocab": 256, **model}, "train": settings}
    run = train_and_resume({**values, "reading": {"segment": 8, "reach": reach}}, corpus, tmp_path)
    bits = json.loads(told("eval", run, "--data", corpus, "--json"))["bits_per_byte"]
    assert 0 < bits < 12
    text = told("generate", run, "--prompt", "the sea", "--tokens", "8", "--seed", "1")
    assert text == told("generate", run, "--prompt", "the sea", "--tokens", "8", "--seed", "1")
    assert len(text.encode()) > len("the sea")
    (tmp_path / "some.txt").write_text("the sea\na ship went out\n")
    assert told("score", run, tmp_path / "some.txt", "--json")


@pytest.mark.parametrize("name", TRANSLATION)
def test_translators(name: str, pairs: Path, tmp_path: Path) -> None:
    (model, train), header = TRANSLATION[name], open_pairs(pairs).header
    shape = {"vocab": header.vocab, "source_vocab": header.source_vocab, **model}
    settings = {"steps": 4, "tokens": 200, "schedule": "constant", "validate_every": 4, **train}
    recipe = {"model": shape, "train": settings, "translating": {"longest": 8}}
    run = train_and_resume(recipe, pairs, tmp_path)
    assert math.isfinite(
        json.loads(told("eval", run, "--data", pairs, "--split", "valid", "--json"))["perplexity"]
    )
    assert told("translate", run, given="the sea\na ship\n").count("\n") == 2
