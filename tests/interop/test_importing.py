"""`segue import` finds out by itself what lies at a path."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_files import their_folder
from test_translators import Tutorial, marian, translator_of
from typer.testing import CliRunner

from encoders import small_bert
from segue.checkpoint import task_of
from segue.cli import app
from segue.interop.ctranslate2_export import export_ctranslate2


def ctranslate2_folder(parent: Path) -> Path:
    export_ctranslate2(translator_of(), parent / "ct2")
    return parent / "ct2"


def packaged(parent: Path) -> Path:
    export_ctranslate2(translator_of(), parent / "package" / "model")
    return parent / "package"


def state_dict(parent: Path) -> Path:
    torch.manual_seed(0)
    save_file(dict(Tutorial(pre=False, activation="relu").state_dict()), parent / "weights.safetensors")
    symbols = ["<pad>", "<sos>", "<eos>", "<unk>", "a", "b", "c", "d", "e"]
    (parent / "vocab.json").write_text(json.dumps({text: number for number, text in enumerate(symbols)}))
    config = {"model_type": "torch-transformer", "nhead": 2, "norm_first": False, "activation": "relu"}
    (parent / "config.json").write_text(json.dumps({**config, "symbols": "characters"}))
    return parent / "weights.safetensors"


SOURCES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "marian": (marian, "translation"),
    "ctranslate2": (ctranslate2_folder, "translation"),
    "a package with a model": (packaged, "translation"),
    "nn.Transformer": (state_dict, "translation"),
    "the authors' PyTorch": (lambda parent: their_folder(parent / "pt", "xl-clamp-samelength"), "language"),
    "bert": (lambda parent: small_bert(parent / "bert"), "encoding"),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", SOURCES)
def test_the_command_finds_out_what_a_folder_is(name: str, tmp_path: Path) -> None:
    write, task = SOURCES[name]
    words = ["import", write(tmp_path), "-o", tmp_path / "bundle"]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exception is None, done.exception
    assert task_of(tmp_path / "bundle") == task
