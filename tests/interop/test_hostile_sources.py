"""Folders that somebody made to deceive or that were damaged: one line each, and no file outside of them is read."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import language_bundle
from pieces import write_pieces
from safetensors.torch import load_file, save_file
from test_importing import state_dict
from torch import Tensor

from segue.config import Reach, Reading, XLConfig
from segue.errors import ConfigError, SegueError, SourceError
from segue.interop import huggingface
from segue.interop.files import load_tensors_only
from segue.interop.hf_folder import export_hf
from segue.interop.hf_tokenizer import read_tokenizer, write_language_tokenizer
from segue.interop.importing import import_model
from segue.interop.reference import export
from segue.interop.sentencepiece import read_pieces
from segue.interop.vocabulary import read_vocabulary
from segue.nn.xl import TransformerXL
from segue.text.parsing import read_object
from segue.text.tokenizer import ByteTokenizer


@pytest.mark.parametrize("name", ["../vocab.json", "/etc/passwd", "folder/vocab.json"])
@pytest.mark.parametrize("key", ["vocab", "source_vocab"])
def test_a_config_names_no_file_elsewhere(key: str, name: str, tmp_path: Path) -> None:
    source = state_dict(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: name}))
    with pytest.raises(ConfigError, match="the name of a file beside the config"):
        import_model(source)


def test_a_pipe_is_not_read_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(SourceError, match="is not a file"):
        read_object(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        ({1: torch.zeros(2)}, "not a state dict of tensors"),
        ({"a": torch.eye(2).to_sparse()}, "a is a sparse tensor"),
        ({"a": torch.zeros(2, device="meta")}, "or has no values"),
    ],
)
def test_tensors_that_are_none(weights: dict[Any, Tensor], what: str, tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(SourceError, match=what):
        load_tensors_only(tmp_path / "pytorch_model.bin")


def _one_no_number(weights: dict[str, Tensor]) -> None:
    weights["model.blocks.0.attention.out.weight"][0, 0] = float("nan")


def _infinite(weights: dict[str, Tensor]) -> None:
    weights["model.blocks.0.attention.out.weight"][0, 0] = float("inf")


def _twice(weights: dict[str, Tensor]) -> None:
    weights["blocks.0.attention.out.weight"] = weights["model.blocks.0.attention.out.weight"] + 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_one_no_number, r"out\.weight has values that are infinite or no numbers"),
        (_infinite, r"out\.weight has values that are infinite or no numbers"),
        (_twice, r"two tensors for blocks\.0\.attention\.out\.weight"),
    ],
)
def test_weights_that_cannot_be_meant(
    change: Callable[[dict[str, Tensor]], None], what: str, tmp_path: Path
) -> None:
    export_hf(language_bundle("xl"), tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SourceError, match=what):
        import_model(tmp_path / "hf")


def test_a_symbol_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "vocab.bin").write_bytes(pickle.dumps({"idx2sym": ["<eos>", "<unk>", "\ud800"]}))
    with pytest.raises(SourceError, match="a symbol that is no text"):
        read_vocabulary(tmp_path / "vocab.bin", 3)


def test_a_number_where_sentencepiece_has_text(tmp_path: Path) -> None:
    write_pieces(tmp_path / "source.spm", {"a": -1.0})
    rules = b"\x1a\x02\x10\x05"  # field 3, two bytes: its field 2 is the number 5
    (tmp_path / "source.spm").write_bytes((tmp_path / "source.spm").read_bytes() + rules)
    with pytest.raises(SourceError, match="no model of sentencepiece: a number where text should be"):
        read_pieces(tmp_path / "source.spm")


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(normalizer={"type": "Evil"}),
        lambda values: values["model"].update(type="Unigram"),
        lambda values: values["model"].update(vocab=[["a", 0]]),
        lambda values: values["model"].update(vocab={"a": 0, "b": "1"}),
    ],
)
def test_a_tokenizer_that_is_more_than_bytes_is_not_taken_for_bytes(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    write_language_tokenizer(tmp_path, ByteTokenizer())
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    assert isinstance(read_tokenizer(tmp_path, 256), ByteTokenizer)
    change(values)
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(SegueError, match="no tokenizer.json"):
        read_tokenizer(tmp_path, 256)


def test_another_segment_is_told() -> None:
    model = TransformerXL(
        XLConfig(vocab=9, width=8, heads=2, layers=1, encoding="shaw", biases="per-layer", max_distance=5)
    )
    _, config, notes = export(model, Reading(segment=1, reach=Reach(memory=3)))
    assert config["tgt_len"] == 2
    assert notes == ["segments of 1 tokens become 2: their table has tgt_len + mem_len rows"]


@pytest.mark.parametrize("write", [export, huggingface.export])
def test_layer_embeddings_are_refused_by_name(write: Callable[..., Any]) -> None:
    model = TransformerXL(XLConfig(vocab=9, width=8, heads=2, layers=2, layer_embeddings=True))
    with pytest.raises(SourceError, match="this model has layer_embeddings"):
        write(model, Reading(segment=4, reach=Reach(memory=3)))
