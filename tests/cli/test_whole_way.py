"""From text to a trained model that generates, through the real command line."""

import json
import random
import signal
import sys
from pathlib import Path

import pytest
import torch
from test_cli import segue
from typer.testing import CliRunner

from segue.checkpoint import load
from segue.cli import app, main
from segue.errors import InputError
from segue.recipe import Recipe, recipe_toml


def log_lines(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        f"12:{number // 60 % 60:02d}:{number % 60:02d} INFO server: request served in {draw.randint(10, 99)} ms\n"
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained on a server's log."""
    folder = tmp_path_factory.mktemp("way")
    (folder / "server.log").write_text("".join(log_lines(1500, seed=1)))
    printed = segue("prepare", folder / "server.log", "-o", folder / "data")
    assert "train" in printed
    recipe = Recipe(
        model={"vocab": 256, "width": 32, "layers": 2, "heads": 2},
        train={
            "lanes": 8, "segment": 32, "memory": 32, "steps": 160,
            "learning_rate": 1e-2, "warmup": 10, "optimizer": "adamw", "clip": 1.0,
            "validate_every": 80, "validate_tokens": 1000,
        },
        reading={"segment": 128, "reach": {"memory": 64}},
    )  # fmt: skip
    (folder / "recipe.toml").write_text(recipe_toml(recipe))
    printed = segue(
        "train", folder / "recipe.toml", "--data", folder / "data", "-o", folder / "run", "--threads", 1
    )
    assert "160 steps" in printed
    return folder


def test_a_loss_that_is_not_finite_is_an_error(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with --json, which has no such number."""
    ones = {name: torch.ones_like(weight) for name, weight in load(trained / "run").model.named_parameters()}
    monkeypatch.setattr("segue.infer.adapt.mean_squares", lambda *_: ones)
    words = ["eval", str(trained / "run"), "--dynamic", "--learning-rate", "1e30", "--json"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, InputError)
    assert "try a smaller --learning-rate" in str(done.exception)


def test_it_is_scored_every_way(trained: Path) -> None:
    ways: dict[str, list[object]] = {
        "memory": [],
        "lanes": ["--lanes", 3],
        "isolated": ["--memory", 0],
        "sliding": ["--sliding", "--limit", 300],
        "dynamic": ["--dynamic", "--learning-rate", 0],
        "cache": ["--cache", 500],
        "ngrams": ["--ngrams", 5, "--lanes", 2],
    }
    scores = {
        way: json.loads(segue("eval", trained / "run", "--json", *words)) for way, words in ways.items()
    }
    bits = {way: score["bits_per_byte"] for way, score in scores.items()}
    assert bits["memory"] < 2
    assert bits["lanes"] == pytest.approx(bits["memory"], abs=1e-4)
    assert bits["dynamic"] == bits["memory"]
    assert bits["isolated"] > bits["memory"]
    assert scores["memory"]["tokens"] == scores["cache"]["tokens"] == scores["memory"]["bytes"]
    assert scores["sliding"]["tokens"] == 300
    assert bits["ngrams"] < bits["memory"]
    alone = scores["ngrams"]["bits_per_token_without_ngrams"]
    assert alone == pytest.approx(scores["memory"]["bits_per_token"], abs=1e-4)
    said = segue("eval", trained / "run", "--ngrams", 2, "--limit", 500)
    assert "mixed with n-grams up to order 2" in said


def test_a_line_that_does_not_belong_is_found(trained: Path) -> None:
    lines = log_lines(900, seed=2)
    lines.insert(877, "12:14:36 ERROR disk: sector 7081 unreadable\n")
    log = trained / "today.log"
    log.write_text("".join(lines))
    number, offset, _, excess, text = (
        segue("score", trained / "run", log, "--top", 1).rstrip("\n").split("\t")
    )
    assert (int(number), text) == (878, "12:14:36 ERROR disk: sector 7081 unreadable")
    assert int(offset) == len("".join(lines[:877]))
    assert float(excess) > 5


def test_it_goes_on_speaking(trained: Path) -> None:
    words = ["generate", trained / "run", "--prompt", "12:00:01 INFO", "--tokens", 60, "--temperature", 0]
    said = segue(*words)
    assert said.startswith("12:00:01 INFO server: request served in ")
    assert segue(*words) == said
    assert segue(*words, "--stop", "served") == "12:00:01 INFO server: request \n"
    assert segue(*words, "--samples", 2).count("12:00:01 INFO") == 2


def test_mistakes_along_the_way_are_one_line(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = trained / "run", trained / "data"
    empty = tmp_path / "empty.txt"
    empty.touch()
    cases: list[tuple[str, list[object]]] = [
        ("is empty; there is nothing to prepare", ["prepare", empty, "-o", tmp_path / "x"]),
        ("no file, folder or data set 'nowhere'", ["prepare", "nowhere", "-o", tmp_path / "x"]),
        ("exists; nothing was overwritten", ["prepare", empty, "-o", data]),
        ("exists; go on with --resume", ["train", "stdlib-demo", "--data", data, "-o", run]),
        (
            "did you mean 'steps'?",
            ["train", "stdlib-demo", "--data", data, "-o", tmp_path / "x", "--set", "train.stpes=5"],
        ),
        ("is no prepared corpus", ["train", "stdlib-demo", "--data", tmp_path, "-o", tmp_path / "x"]),
        (
            "longer than a lane",
            ["train", "stdlib-demo", "--data", data, "-o", tmp_path / "x", "--set", "train.segment=99999"],
        ),
        ("no split 'tset'; it has train, valid, test", ["eval", run, "--split", "tset"]),
        ("exclude each other; choose one", ["eval", run, "--sliding", "--dynamic"]),
        ("exclude each other; choose one", ["eval", run, "--ngrams", 3, "--cache", 9]),
        ("--learning-rate has no effect without --dynamic", ["eval", run, "--learning-rate", 1e-4]),
        ("--cache-weight has no effect without --cache", ["eval", run, "--cache-weight", 0.2, "--dynamic"]),
        ("--memory has no effect with --sliding", ["eval", run, "--sliding", "--memory", 9]),
        ("score another split", ["eval", run, "--ngrams", 3, "--split", "valid"]),
        ("there is no file nothing.log", ["score", run, "nothing.log"]),
        ("is not available", ["eval", run, "--device", "cuda:7"]),
        ("is not available", ["eval", run, "--device", "meta"]),
    ]
    # in the test's process, the command must not install signal handlers
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("SEGUE_THREADS", "1")
    for message, words in cases:
        monkeypatch.setattr(sys, "argv", ["segue", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 1
        complaint = capsys.readouterr().err
        assert message in complaint, complaint
        assert complaint.startswith("segue: ")
        assert complaint.count("\n") == 1
    assert not (tmp_path / "x").exists()


def shown(*words: object) -> str:
    """The output of `segue attention`, run in this process."""
    done = CliRunner().invoke(app, ["attention", *map(str, words), "--threads", "1"])
    return str(done.exception) if done.exception else done.output


def test_where_its_tokens_look(trained: Path) -> None:
    run, page = trained / "run", trained / "attention.html"
    text = "12:00:00 INFO server"
    assert "open it" in shown(run, "-o", page, "--text", text, "--segment", 6, "--memory", 8)
    told = page.read_text()
    assert "the last 6 tokens attend to each other and to 8 tokens in memory" in told
    assert "(d) distance alone" in told
    assert "with either --text or --file" in shown(run, "-o", page)
    assert "needs at least two" in shown(run, "-o", page, "--text", "1")
    assert "could not be read" in shown(run, "-o", page, "--file", trained / "nothing")
    shown(run, "-o", page, "--file", trained / "server.log")
    assert "the last 64 tokens attend to each other and to 192 tokens in memory" in page.read_text()


def test_pairs_the_whole_way(tmp_path: Path) -> None:
    (tmp_path / "en").write_text("one two\nthree\n\nfour one\n" * 10)
    (tmp_path / "de").write_text("eins zwei\ndrei\nleer\nvier eins\n" * 10)
    files = [tmp_path / "en", tmp_path / "de"]
    told = segue("prepare-pairs", "--train", *files, "--size", "270", "-o", tmp_path / "pairs")
    assert "train           29 pairs" in told
    small = [
        "model.width=16",
        "model.heads=2",
        "model.feedforward=16",
        "train.steps=4",
        "train.validate_every=2",
    ]
    small.append("translating.longest=9")
    changes = [word for change in small for word in ("--set", change)]
    segue("train", "multi30k-cpu", "--data", tmp_path / "pairs", "-o", tmp_path / "run", *changes)
    page = tmp_path / "page.html"
    output = segue("translate", tmp_path / "run", tmp_path / "en", "--beam-width", "2", "--attention", page)
    assert "decoder to encoder, layer 4" in page.read_text()
    shown(tmp_path / "run", "--text", "three one", "-o", tmp_path / "other.html")
    assert "decoder to encoder, layer 4" in (tmp_path / "other.html").read_text()
    assert len(output.splitlines()) == 40
    assert output.splitlines()[2] == ""
    assert "seq2seq" in segue("info", tmp_path / "run")
    assert "use segue translate" in segue("generate", tmp_path / "run", code=1)
