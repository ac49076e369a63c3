"""Recurrent models go through the same commands and calls as Transformer-XL."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from test_cli import segue as command
from torch.testing import assert_close
from typer.testing import CliRunner

import segue
from segue.checkpoint import checkpoints
from segue.cli import app
from segue.config import Reach, Reading
from segue.errors import SegueError
from segue.infer.adapt import Cache, Dynamic, evaluate_cached, evaluate_dynamic, mean_squares
from segue.infer.evaluate import evaluate, evaluate_sliding
from segue.recipe import Recipe, recipe_toml
from segue.text.corpus import open_corpus

KERNELS = {"elu": {}, "performer": {"random_features": 16}}


def recipe(cell: str = "lstm", **train: object) -> Recipe:
    """Dropout is on, so that the random state must be restored too."""
    model: dict[str, object] = {"kind": "recurrent", "cell": cell}
    if cell in KERNELS:
        model = {"kind": "kernel", "features": cell, "heads": 2, **KERNELS[cell]}
    return Recipe(
        model={**model, "vocab": 256, "width": 12, "layers": 2, "dropout": 0.1},
        train={
            "lanes": 4,
            "segment": 7,
            "memory": 1,
            "steps": 12,
            "learning_rate": 1e-2,
            "clip": 1.0,
            **train,
        },
        reading={"segment": 16, "reach": {"memory": 1}},
    )


def final_weights(run: Path) -> bytes:
    return (checkpoints(run)[-1] / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        ("rnn", {}),
        ("gru", {"accumulate": 2}),
        ("lstm", {"optimizer": "muon", "segment": 60}),
        ("lstm", {"documents": False}),
        ("elu", {"accumulate": 2}),
        ("performer", {"optimizer": "muon", "segment": 70}),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(
    cell: str, changes: dict[str, object], corpus: Path, tmp_path: Path
) -> None:
    whole = segue.train(recipe(cell, save_every=1, keep=99, **changes), corpus, tmp_path / "whole")
    part = tmp_path / "part"
    shutil.copytree(whole, part)
    for folder in checkpoints(part)[5:]:
        shutil.rmtree(folder)
    segue.resume(part)
    assert final_weights(part) == final_weights(whole)
    first, last = (checkpoints(whole)[place] / "model.safetensors" for place in (0, -1))
    assert first.read_bytes() != last.read_bytes()


@pytest.fixture(scope="module", params=["lstm", "elu"])
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Through the command line, with validation."""
    folder = tmp_path_factory.mktemp("recurrent")
    chosen = recipe(request.param, steps=120, lanes=8, segment=32, validate_every=60, validate_tokens=500)
    (folder / "recipe.toml").write_text(recipe_toml(chosen))
    words = [folder / "recipe.toml", "--data", corpus, "-o", folder / "run", "--threads", 1]
    assert "120 steps" in command("train", *words)
    return folder / "run"


def test_a_session_scores_what_evaluation_scores(trained: Path, corpus: Path) -> None:
    bundle, stream = segue.load(trained), open_corpus(corpus).stream("test")
    session = bundle.session()
    text = stream.text(0, 200)
    nats = session.feed(text[:90]) + session.feed(text[90:])
    whole = evaluate(bundle.model, stream, bundle.reading, limit=199, documents=False)
    assert sum(nats) == pytest.approx(whole.nats, rel=1e-4)
    twin = session.fork()
    assert session.generate(20, seed=3) == twin.generate(20, seed=3)


def test_every_way_of_evaluating(trained: Path, corpus: Path) -> None:
    bundle, stream = segue.load(trained), open_corpus(corpus).stream("test")
    model, reading = bundle.model, bundle.reading
    bits = evaluate(model, stream, reading, limit=300).bits_per_byte
    assert bits < 4.5
    assert evaluate(model, stream, reading.changed(segment=300), limit=300).bits_per_byte == pytest.approx(
        bits, 1e-4
    )
    far = Reading(segment=300, reach=reading.reach)
    assert evaluate_sliding(model, stream, far, limit=300).bits_per_byte == pytest.approx(bits, 1e-4)
    assert evaluate(model, stream, reading.changed(memory=0), limit=300).bits_per_byte > bits
    isolated = Reading(segment=reading.segment, reach=Reach(memory=0, positions="restart"))
    alone = evaluate(model, stream, isolated, limit=300).bits_per_byte
    assert evaluate(model, stream, isolated, limit=300, lanes=2).bits_per_byte == pytest.approx(alone, 1e-4)
    with pytest.raises(SegueError, match="read it in one lane"):
        evaluate(model, stream, reading, limit=300, lanes=2)
    squares = mean_squares(model, open_corpus(corpus).stream("train"), reading, 500)
    dynamic = evaluate_dynamic(model, stream, reading, squares, Dynamic(learning_rate=1e-3), limit=300)
    assert dynamic.bits_per_byte != pytest.approx(bits, 1e-4)
    cached = evaluate_cached(model, stream, reading, Cache(weight=0.0), limit=300)
    assert cached.bits_per_byte == pytest.approx(bits, 1e-4)


def test_the_commands(trained: Path, tmp_path: Path) -> None:
    def told(*words: object, code: int = 0) -> str:
        """In this process: starting a new one would take longer than the command itself."""
        result = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
        if code:
            assert isinstance(result.exception, SegueError)
            return str(result.exception)
        assert result.exit_code == 0, result.exception
        return result.output

    score = json.loads(told("eval", trained, "--json", "--memory", 1))
    assert score["bits_per_byte"] < 4.5
    words = ["generate", trained, "--prompt", "the sea", "--tokens", 30, "--seed", 1]
    assert told(*words).startswith("the sea")
    assert told(*words) == told(*words)
    alone = [told(*words[:-1], seed) for seed in (1, 2)]
    assert told(*words, "--samples", 2) == f"--- 1\n{alone[0]}--- 2\n{alone[1]}"
    mark, said = alone[0][-3:-1], alone[0].removeprefix("the sea")
    stopped = told(*words, "--samples", 2, "--stop", mark)
    assert stopped.startswith(f"--- 1\nthe sea{said[: said.index(mark)]}\n--- 2\n")
    assert told("generate", trained, "--prompt", "a ship", "--tokens", 9, "--samples", 2).count("a ship") == 2
    (tmp_path / "text").write_text("the sea went out\nand came home\n")
    assert len(told("score", trained, tmp_path / "text").splitlines()) == 2
    assert any(word in told("info", trained) for word in ("lstm", "kernel"))
    assert "clamp and span limit how far attention looks back" in told("eval", trained, "--span", 8, code=1)
    out = ["-o", tmp_path / "out", "--layout", "huggingface"]
    assert "this is a" in told("export", trained, *out, code=1)


def test_a_saved_bundle_is_the_same_model(trained: Path, tmp_path: Path) -> None:
    bundle = segue.load(trained)
    bundle.save(tmp_path / "bundle")
    again = segue.load(tmp_path / "bundle")
    assert_close(dict(again.model.state_dict()), dict(bundle.model.state_dict()), rtol=0, atol=0)
    assert again.model.config == bundle.model.config
    assert not again.model.training
    assert torch.is_tensor(again.session().reader.memory.rows[0])


def test_an_unknown_kind_is_told_what_there_is() -> None:
    values = recipe().model_dump(mode="json")
    values["model"]["kind"] = "rnn"
    with pytest.raises(
        SegueError,
        match="model.kind should be one of 'xl', 'recurrent', 'kernel', 'universal', 'convolutional'; found 'rnn'",
    ):
        Recipe(**values)
