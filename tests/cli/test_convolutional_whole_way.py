"""Convolutional models and Al-Rfou's Transformer go through the same commands and calls as Transformer-XL."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segue
from segue.checkpoint import checkpoints
from segue.cli import app
from segue.errors import SegueError
from segue.infer.evaluate import evaluate, evaluate_sliding
from segue.recipe import Recipe, recipe_toml
from segue.text.corpus import open_corpus

MODELS: dict[str, dict[str, object]] = {
    "glu": {"kind": "convolutional", "gate": "glu", "layers": [[20, 4], [16, 3, 2]]},
    "tcn": {"kind": "convolutional", "gate": "tcn", "layers": [[20, 2], [16, 2, 2]]},
    "qrnn": {"kind": "convolutional", "gate": "qrnn", "layers": [[20, 2], [16, 1]]},
    "alrfou": {"layers": 2, "heads": 2, "encoding": "per-layer", "max_positions": 24, "tied": False},
}


def recipe(name: str, **train: object) -> Recipe:
    """Dropout is on, so that the random state must be restored too."""
    reach: dict[str, object] = {"memory": 1}
    if name == "alrfou":
        reach = {"memory": 0, "positions": "restart"}
        train = {"ahead": 2, "intermediate": 6, **train}
    return Recipe(
        model={**MODELS[name], "vocab": 256, "width": 16, "dropout": 0.05},
        train={"lanes": 4, "segment": 7, "steps": 12, "learning_rate": 1e-2, "clip": 1.0, **reach, **train},
        reading={"segment": 24, "reach": reach},
    )


def told(*words: object) -> str:
    """In this process: starting a new one would take longer than the command itself."""
    result = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    if isinstance(result.exception, SegueError):
        raise result.exception
    assert result.exit_code == 0, result.exception
    return result.output


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("glu", {"optimizer": "nesterov", "learning_rate": 0.3}),
        ("tcn", {"optimizer": "muon", "segment": 60}),
        ("qrnn", {"accumulate": 2}),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(
    name: str, changes: dict[str, object], corpus: Path, tmp_path: Path
) -> None:
    whole = segue.train(recipe(name, save_every=1, keep=99, **changes), corpus, tmp_path / "whole")
    part = tmp_path / "part"
    shutil.copytree(whole, part)
    for folder in checkpoints(part)[5:]:
        shutil.rmtree(folder)
    segue.resume(part)
    ends = [(checkpoints(run)[-1] / "model.safetensors").read_bytes() for run in (whole, part)]
    assert ends[0] == ends[1]
    assert ends[0] != (checkpoints(whole)[0] / "model.safetensors").read_bytes()


@pytest.fixture(scope="module", params=MODELS)
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    chosen = recipe(request.param, steps=150, lanes=8, segment=24, validate_every=75, validate_tokens=300)
    (folder / "recipe.toml").write_text(recipe_toml(chosen))
    told("train", folder / "recipe.toml", "--data", corpus, "-o", folder / "run", "--threads", 1)
    return folder / "run"


def test_train_eval_generate_and_score(trained: Path, tmp_path: Path) -> None:
    score = json.loads(told("eval", trained, "--json", "--limit", 400))
    assert score["bits_per_byte"] < 4.5
    words = ["generate", trained, "--prompt", "the sea", "--tokens", 20, "--seed", 1]
    assert told(*words).startswith("the sea")
    assert told(*words) == told(*words)
    assert told(*words, "--samples", 2).count("the sea") == 2
    (tmp_path / "text").write_text("the sea went out\nand came home\n")
    assert len(told("score", trained, tmp_path / "text").splitlines()) == 2
    assert "parameters" in told("info", trained)
    with pytest.raises(SegueError, match="this is a|has no 'per-layer'|per-layer"):
        told("export", trained, "-o", tmp_path / "out", "--layout", "huggingface")


def test_a_session_scores_what_evaluation_scores(trained: Path, corpus: Path) -> None:
    bundle, stream = segue.load(trained), open_corpus(corpus).stream("test")
    session = bundle.session()
    text = stream.text(0, 120)
    nats = session.feed(text[:50]) + session.feed(text[50:])
    if bundle.reading.reach.memory:
        whole = evaluate(bundle.model, stream, bundle.reading, limit=119, documents=False)
        assert sum(nats) == pytest.approx(whole.nats, rel=1e-4)
    twin = session.fork()
    assert session.generate(20, seed=3) == twin.generate(20, seed=3)


def test_neither_segments_nor_lanes_change_the_score(trained: Path, corpus: Path) -> None:
    bundle, stream = segue.load(trained), open_corpus(corpus).stream("test")
    model, reading = bundle.model, bundle.reading
    bits = evaluate(model, stream, reading, limit=300).bits_per_byte
    if not reading.reach.memory:
        assert evaluate_sliding(model, stream, reading, limit=300).bits_per_byte < 4.5
        assert evaluate(model, stream, reading, limit=300, lanes=3).bits_per_byte == pytest.approx(bits, 1e-4)
        return
    for segment in (1, 5, 300):
        changed = evaluate(model, stream, reading.changed(segment=segment), limit=300)
        assert changed.bits_per_byte == pytest.approx(bits, 1e-4)
    assert evaluate(model, stream, reading.changed(memory=0), limit=300).bits_per_byte > bits
    if model.looks_back(reading) is None:
        with pytest.raises(SegueError, match="read it in one lane"):
            evaluate(model, stream, reading, limit=300, lanes=2)
    else:
        assert evaluate(model, stream, reading, limit=300, lanes=3).bits_per_byte == pytest.approx(bits, 1e-4)
        field = model.looks_back(reading) + 1
        near = evaluate_sliding(model, stream, reading.changed(segment=field), limit=300)
        assert near.bits_per_byte == pytest.approx(bits, 1e-4), "the receptive field is all that is known"
