"""`--kv-cache` and `--invariant` through the commands."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from segue.checkpoint import Bundle
from segue.cli import app
from segue.config import Reach, Reading, RecurrentConfig, XLConfig
from segue.errors import SegueError
from segue.nn.models import build_language_model
from segue.text.tokenizer import ByteTokenizer

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("precision")
    torch.manual_seed(0)
    reading = Reading(segment=16, reach=Reach(memory=32, span=33))
    for name, config in {
        "xl": XLConfig(vocab=256, width=16, layers=2, heads=2),
        "lstm": RecurrentConfig(vocab=256, width=16, layers=1),
    }.items():
        Bundle(build_language_model(config), reading, ByteTokenizer()).save(folder / name)
    (folder / "text.txt").write_text("the sea and the ship and the sea again, and no land in sight\n" * 40)
    told("prepare", folder / "text.txt", "-o", folder / "data")
    return folder


def told(*words: object) -> str:
    """What a command says, or the one line of its error."""
    threads = torch.get_num_threads()
    done = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    torch.set_num_threads(threads)
    return str(done.exception) if isinstance(done.exception, SegueError) else done.output


def bits(place: Path, *options: object) -> Any:
    words = ("eval", place / "xl", "--data", place / "data", "--split", "train", "--limit", 300, "--json")
    return json.loads(told(*words, *options))


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_fewer_bytes_change_little(place: Path, precision: str) -> None:
    exact, rounded = (bits(place, "--kv-cache", name)["bits_per_byte"] for name in ("exact", precision))
    assert rounded == pytest.approx(exact, abs=0.01)
    said = told("generate", place / "xl", "--prompt", "the sea", "--tokens", 5, "--kv-cache", precision)
    assert said.startswith("the sea")


def test_what_has_no_such_cache_says_so(place: Path) -> None:
    assert "RecurrentModel" in told(
        "generate", place / "lstm", "--prompt", "a", "--tokens", 1, "--kv-cache", "int8"
    )
    assert "is not one of" in told("generate", place / "xl", "--prompt", "a", "--kv-cache", "int4")


@needs_compiler
def test_the_same_score_however_it_is_read(place: Path) -> None:
    scores = [
        bits(place, "--invariant", *options)["nats_per_token"]
        for options in ((), ("--lanes", 3), ("--segment", 7), ("--threads", 2))
    ]
    assert len(set(scores)) == 1


@needs_compiler
@pytest.mark.parametrize("option", [("--int8",), ("--kv-cache", "int8"), ("--sliding",)])
def test_what_does_not_go_with_invariance(place: Path, option: tuple[str, ...]) -> None:
    words = ("eval", place / "xl", "--data", place / "data", "--split", "train", "--invariant")
    assert "does not go with" in told(*words, *option)
