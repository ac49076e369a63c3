"""Models with windows and patterns are trained, resumed, evaluated and generated from by the same commands."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segue
from segue.checkpoint import checkpoints
from segue.cli import app
from segue.errors import SegueError
from segue.infer.evaluate import evaluate
from segue.recipe import Recipe
from segue.text.corpus import open_corpus

WAYS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "window": ({}, {"span": 9}),
    "pinned": ({}, {"span": 9, "pinned": 3, "clamp": 12}),
    "strided": ({"pattern": "strided", "stride": 4, "combine": "layers"}, {}),
    "fixed": ({"pattern": "fixed", "stride": 6, "summary": 2}, {}),
}


@pytest.fixture(scope="module", params=WAYS)
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    shape, reach = WAYS[request.param]
    recipe = Recipe(
        model={"vocab": 256, "width": 16, "layers": 2, "heads": 2, "dropout": 0.1, **shape},
        train={
            "lanes": 4,
            "segment": 24,
            "memory": 24,
            "steps": 16,
            "learning_rate": 1e-2,
            "save_every": 8,
            **reach,
        },
        reading={"segment": 24, "reach": {"memory": 48, **reach}},
    )
    return segue.train(recipe, corpus, tmp_path_factory.mktemp("sparse") / "run")


def told(*words: object) -> str:
    """In this process: starting a new one would take longer than the command itself."""
    result = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    if result.exception is not None:
        raise result.exception
    return result.output


def test_evaluation_and_generation(trained: Path) -> None:
    assert json.loads(told("eval", trained, "--json", "--limit", 200))["bits_per_byte"] < 8
    if segue.load(trained).reading.reach.pinned:
        scores = [told("eval", trained, "--json", "--limit", 200, "--pinned", count) for count in (0, 3, 5)]
        assert len({json.loads(score)["bits_per_byte"] for score in scores}) == 3
    words = ["generate", trained, "--prompt", "the sea", "--tokens", 30, "--seed", 1]
    assert told(*words).startswith("the sea")
    assert told(*words) == told(*words)
    with pytest.raises(SegueError):
        told("eval", trained, "--memory", -1)


def test_a_session_scores_what_evaluation_scores(trained: Path, corpus: Path) -> None:
    """Single tokens, segments of any size and the segments of evaluation: one reading."""
    bundle, stream = segue.load(trained), open_corpus(corpus).stream("test")
    session = bundle.session(memory=300)
    text = stream.text(0, 200)
    nats = session.feed(text[:90]) + session.feed(text[90:91]) + session.feed(text[91:])
    reading = bundle.reading.changed(memory=300)
    whole = evaluate(bundle.model, stream, reading, limit=199, documents=False)
    assert sum(nats) == pytest.approx(whole.nats, rel=1e-4)


def test_a_resumed_run_ends_with_the_same_bits(trained: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(trained, part)
    last = checkpoints(part)[-1]
    wanted = (last / "model.safetensors").read_bytes()
    shutil.rmtree(last)
    segue.resume(part)
    assert (checkpoints(part)[-1] / "model.safetensors").read_bytes() == wanted


def test_patterns_have_no_foreign_layout(trained: Path, tmp_path: Path) -> None:
    pattern = segue.load(trained).model.config.pattern
    words = ["export", trained, "-o", tmp_path / "out", "--layout", "huggingface"]
    if pattern == "full":
        told(*words)
    else:
        with pytest.raises(SegueError, match=f"full attention alone; this model has the pattern '{pattern}'"):
            told(*words)
