"""Bundles and runs that someone altered, checksums made right again: nothing is built for what is not there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import segue
from segue.checkpoint import (
    CHECKSUMS,
    Bundle,
    Translator,
    load_translator,
    seal,
)
from segue.config import Reach, Reading, Seq2SeqConfig, Translating, XLConfig
from segue.errors import BundleError, SegueError
from segue.infer.sample import Sampling, choose
from segue.nn.seq2seq import Seq2Seq
from segue.nn.xl import TransformerXL
from segue.text.tokenizer import ByteTokenizer, word_tokenizer

SHAPE: dict[str, Any] = {"vocab": 256, "width": 4, "layers": 1, "heads": 1, "feedforward": 4}


def bundle(folder: Path, **shape: object) -> Path:
    model = TransformerXL(XLConfig(**{**SHAPE, **shape}))
    Bundle(model, Reading(segment=4, reach=Reach(memory=4)), ByteTokenizer()).save(folder)
    return folder


def reseal(folder: Path) -> None:
    (folder / CHECKSUMS).unlink()
    seal(folder)


def change_config(folder: Path, **shape: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    values["model"] |= shape
    (folder / "config.json").write_text(json.dumps(values))
    reseal(folder)


@pytest.mark.parametrize(
    "shape",
    [
        {"layers": 10**9},
        {"width": 10**15},
        {"feedforward": 2**62},
        {"vocab": 2**62},
        {"embedding": 10**12},
        {"heads": 2**40, "head_width": 2**40},
        {"encoding": "shaw", "max_distance": 10**10},
        {"encoding": "learned", "max_positions": 2**62},
        {"heads": 900, "head_width": 900, "encoding": "shaw", "max_distance": 200},
    ],
)
def test_a_config_cannot_ask_for_more_than_the_weights_are(shape: dict[str, object], tmp_path: Path) -> None:
    change_config(bundle(tmp_path / "model"), **shape)
    with pytest.raises(BundleError):
        segue.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda weight: weight.to(torch.int64), "weights should be real numbers"),
        (lambda weight: weight.to(torch.float8_e4m3fn), "weights should be real numbers"),
        (lambda weight: weight.to(torch.float64), "should be of one precision"),
    ],
)
def test_weights_are_real_numbers_of_one_precision(
    change: Callable[[torch.Tensor], torch.Tensor], complaint: str, tmp_path: Path
) -> None:
    folder = bundle(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["vocabulary.biases.0"] = change(weights["vocabulary.biases.0"])
    save_file(weights, folder / "model.safetensors")
    reseal(folder)
    with pytest.raises(BundleError, match=complaint):
        segue.load(folder)


def test_a_tokenizer_has_no_more_symbols_than_its_model(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "model")
    (folder / "tokenizer.json").write_text(word_tokenizer([str(number) for number in range(257)]).json())
    reseal(folder)
    with pytest.raises(BundleError, match="has 257 symbols and its model 256"):
        segue.load(folder)


def test_a_translator_has_two_symbols_more_than_its_tokenizers(tmp_path: Path) -> None:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "width": 4, "heads": 1}
    for vocab, source in ((258, 257), (257, 0)):
        model = Seq2Seq(Seq2SeqConfig(vocab=vocab, source_vocab=source, **layers))
        Translator(model, Translating(), ByteTokenizer(), ByteTokenizer()).save(tmp_path / f"{vocab}")
        with pytest.raises(BundleError, match="has 256 symbols and its model 255"):
            load_translator(tmp_path / f"{vocab}")


def test_probabilities_that_are_no_numbers_are_told_in_one_line() -> None:
    with pytest.raises(SegueError, match="are its weights whole"):
        choose(torch.full((1, 3), float("nan")), Sampling(), torch.Generator())
