"""The examples of the README and the tutorial run as written."""

import re
from pathlib import Path

import pytest
import torch
import typer

import segue
from runs import make_corpus, small_recipe
from segue.cli import app

README = Path(__file__).parent.parent / "README.md"
TUTORIAL = README.parent / "docs" / "tutorial.md"


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_first_minute_runs_as_written() -> None:
    block = python_blocks(README)[0]
    torch.manual_seed(0)
    names: dict[str, object] = {}
    with torch.no_grad():
        exec(block, names)  # noqa: S102
    nats, logprobs, memory = (names[name] for name in ("nats", "logprobs", "memory"))
    assert isinstance(nats, torch.Tensor)
    assert nats.shape == (4, 128)
    assert isinstance(logprobs, torch.Tensor)
    assert logprobs.shape == (4, 128, 256)
    assert memory.seen.tolist() == [256, 256, 51, 178]  # type: ignore[attr-defined]


def test_sessions_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a run that is trained for a moment."""
    corpus = make_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    segue.train(small_recipe(), corpus, "runs/mine")
    for block in (python_blocks(README)[1], *python_blocks(TUTORIAL)):
        exec(block, {})  # noqa: S102
    assert len(capsys.readouterr().out) > 100


def test_every_command_of_the_pages_exists() -> None:
    """Words after `segue` and options after them are known to the command line."""
    commands = typer.main.get_command(app).commands
    docs = README.parent / "docs"
    for page in (README, TUTORIAL, docs / "interop.md", docs / "encoder.md"):
        for line in re.findall(r"^    (?:.*\| )?segue (.+)$", page.read_text(), re.MULTILINE):
            verb, *words = line.split("#")[0].split()
            assert verb in commands, line
            options = {name for parameter in commands[verb].params for name in parameter.opts}
            asked = {word.strip("[]") for word in words if word.strip("[]").startswith("--")}
            assert asked <= options, line
