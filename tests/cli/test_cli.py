"""The command line in a real process, as a user runs it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from segue.cli import app
from test_references import FOLDER

VERBS = ("info", "import", "export")


def segue(*words: str | Path, code: int = 0) -> str:
    """The output of a command; on failure, its error message."""
    command = [sys.executable, "-c", "from segue.cli import main; main()", *map(str, words)]
    # One thread: tests run side by side, and threads that wait for each other are slower than none.
    one = {**os.environ, "SEGUE_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=one)
    assert run.returncode == code, run.stderr
    return run.stdout if code == 0 else run.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_help_teaches_by_example(verb: str) -> None:
    assert verb in segue("--help")
    assert "Example: segue " + verb in segue(verb, "--help")


def test_info_lists_the_presets() -> None:
    listed = segue("info")
    assert re.search(r"wt103-standard +151,107,538", listed)
    facts = json.loads(segue("info", "--json"))
    assert facts["enwik8-12l"]["parameters"] == 41_055_436
    assert facts["enwik8-12l"]["train"]["steps"] == 400_000


def test_info_shows_one() -> None:
    shown = segue("info", "wt103-large")
    assert "285,170,506" in shown
    assert "257,889,098" in shown
    assert "did you mean 'wt103-large'?" in segue("info", "wt103-larg", code=1)


def test_from_a_foreign_checkpoint_and_back(tmp_path: Path) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "out"
    source = FOLDER / "hf-transfo-xl-div2.safetensors"
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(f"word{number}" for number in range(120)))
    printed = segue("import", source, "-o", bundle, "--vocab", vocab)
    assert "30,235 parameters; reads with memory 10, clamp 7, span 10, initial zeros" in printed
    shown = json.loads(segue("info", bundle, "--json"))
    assert shown["precision"] == "float32"
    assert shown["tokenizer"] == "120 symbols"
    assert "huggingface layout" in segue("export", bundle, "-o", out, "--layout", "huggingface")
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert segue("export", bundle, "-o", out, "--layout", "huggingface", code=1).count("\n") == 2


def test_mistakes_are_one_line_and_a_code(tmp_path: Path) -> None:
    assert (
        segue("import", tmp_path / "none", "-o", tmp_path / "b", code=1)
        .splitlines()[-1]
        .startswith("segue: ")
    )
    assert "Missing option" in segue("import", tmp_path, code=2)
    assert "No such command" in segue("imprt", code=2)
    assert segue("--version").startswith("segue 0.")


ROWS = [
    f"rows{kind}{packed}" for kind in (".jsonl", ".parquet") for packed in ("", ".gz", ".xz", ".bz2", ".zip")
]


@pytest.mark.parametrize("name", ROWS)
def test_rows_want_to_know_their_column(name: str, tmp_path: Path) -> None:
    rows = tmp_path / name
    rows.write_text('{"text": "sea"}\n')
    done = CliRunner().invoke(app, ["prepare", str(rows), "-o", str(tmp_path / "corpus")])
    said = f"{rows} has rows; name their text field, for example: --column text"
    assert (str(done.exception), done.output) == (said, "")
    assert not (tmp_path / "corpus").exists()
