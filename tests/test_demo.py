"""The demo, as `make demo` runs it, on a small text and for a few steps."""

import importlib.util
from pathlib import Path

import pytest

from runs import write_texts
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_the_demo_from_training_to_its_picture(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    paths = write_texts(tmp_path / "texts", 60)
    settings = PrepareConfig(tokenizer="bpe", size=280, valid=0.2, test=0.2)
    prepare(from_files("texts", paths), tmp_path / "stdlib-bpe", settings, lambda *_: None)
    changes = [
        "model.vocab=280",
        "model.width=24",
        "train.steps=8",
        "train.lanes=2",
        "train.validate_every=4",
    ]
    demo.main(tmp_path, *(word for change in changes for word in ("--set", change)))
    shown = capfd.readouterr().out
    assert "$ segue train stdlib-bpe" in shown
    assert "memory 64 (as in training)" in shown
    assert "xz -9, for comparison" in shown
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
