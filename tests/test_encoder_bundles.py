"""Bundles of encoders: what is saved comes back, with any head; what was altered is refused in one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import segue
from encoders import PIECES, SHAPE, small_encoder
from segue.checkpoint import CHECKSUMS, load_encoder_bundle, load_translator, seal, task_of
from segue.cli.info import _bundle
from segue.config import EncoderBundleConfig, EncoderConfig, EncoderReading, HeadConfig
from segue.errors import BundleError, ConfigError, SegueError
from segue.text.wordpiece import read_wordpiece

HEADS = [
    None,
    HeadConfig(task="masked"),
    HeadConfig(task="masked", next_sentence=True),
    HeadConfig(task="text", labels=("no", "yes"), pairs=True),
    HeadConfig(task="tags", labels=("O", "B-x", "I-x")),
    HeadConfig(task="span"),
    HeadConfig(task="score"),
]


def change(folder: Path, group: str, **values: object) -> None:
    """Edit config.json and make the checksums right again, as an attacker would."""
    content = json.loads((folder / "config.json").read_text())
    content[group] = {**(content[group] or {}), **values}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / CHECKSUMS).unlink()
    seal(folder)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.task if head else "none")
def test_an_encoder_comes_back_as_it_was(head: HeadConfig | None, tmp_path: Path) -> None:
    saved = small_encoder(tmp_path, head, shared_layers=True, embedding=4)
    saved.save(tmp_path / "model")
    saved.save(tmp_path / "model")  # a bundle is replaced
    loaded = load_encoder_bundle(tmp_path / "model")
    assert (loaded.model.config, loaded.model.task) == (saved.model.config, head)
    assert loaded.reading == saved.reading
    assert loaded.tokenizer.json() == saved.tokenizer.json()
    assert not loaded.model.training
    assert_close(dict(loaded.model.state_dict()), dict(saved.model.state_dict()), rtol=0, atol=0)
    assert task_of(tmp_path / "model") == "encoding"
    ids = torch.tensor([[2, 5, 6, 3]])
    if head is not None:
        predicted = loaded.model(ids)
        assert (
            predicted.logits.shape
            == {
                "masked": (1, 4, 15),
                "text": (1, 2),
                "tags": (1, 4, 3),
                "span": (1, 4, 2),
                "score": (1, 1),
            }[head.task]
        )
        assert (predicted.seq_relationship_logits is not None) == head.next_sentence
        assert_close(predicted.logits, saved.model(ids).logits, rtol=0, atol=0)


def test_info_tells_what_an_encoder_is(tmp_path: Path) -> None:
    small_encoder(tmp_path, HEADS[3]).save(tmp_path / "model")
    facts = _bundle(tmp_path / "model")
    head = {
        "task": "text",
        "labels": ["no", "yes"],
        "pairs": True,
        "next_sentence": False,
        "no_answer": False,
    }
    assert facts["head"] == head
    assert (facts["tokenizer"], facts["reading"]["pooling"]) == ("15 symbols", "mean")


def test_other_commands_say_that_it_is_an_small_encoder(tmp_path: Path) -> None:
    small_encoder(tmp_path).save(tmp_path / "model")
    with pytest.raises(BundleError, match="is an encoder, which reads whole texts and not streams"):
        segue.load(tmp_path / "model")
    with pytest.raises(BundleError, match="cannot translate"):
        load_translator(tmp_path / "model")


@pytest.mark.parametrize(
    ("group", "values", "complaint"),
    [
        ("model", {"layers": 10**9}, "layers"),
        ("model", {"layers": 10**9, "shared_layers": True}, "layers"),
        ("model", {"width": 10**15}, "width"),
        ("model", {"embedding": 10**12}, "embedding"),
        ("model", {"max_positions": 2**62}, "max_positions"),
        ("model", {"vocab": 14}, "words.weight has shape"),
        ("model", {"types": 3}, "types.weight has shape"),
        ("model", {"pooler": False}, "pooler"),
        ("model", {"cutoffs": [3]}, "leave out cutoffs"),
        ("model", {"norm": "pre"}, "norm should be 'post'"),
        ("model", {"activation": "relu"}, "activation should be"),
        ("head", {"task": "text"}, "needs two labels or more"),
        ("head", {"task": "tags", "labels": ["a", "a"]}, "labels should be different"),
        ("head", {"task": "span", "labels": ["a", "b"]}, "has no labels"),
        (
            "head",
            {"task": "tags", "labels": [str(number) for number in range(10**5)]},
            "lacks the tensor head",
        ),
        ("head", {"task": "poetry"}, "task should be"),
        ("head", {"task": "masked", "no_answer": True}, "no_answer belongs to the task span"),
        ("reading", {"max_length": 10}, "max_length 10 is more than the encoder's 9 positions"),
        ("reading", {"max_length": 2}, "greater than or equal to 5"),
        ("reading", {"pooling": "max"}, "pooling should be"),
    ],
)
def test_a_forged_config_is_refused_in_one_line(
    group: str, values: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    small_encoder(tmp_path).save(tmp_path / "model")
    change(tmp_path / "model", group, **values)
    with pytest.raises(SegueError, match=complaint) as caught:
        load_encoder_bundle(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_weights_and_tokenizer_are_verified(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    small_encoder(tmp_path).save(folder)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"\x07")
    with pytest.raises(BundleError, match="is not the file that was saved"):
        load_encoder_bundle(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.norm.bias"] = tensors["encoder.norm.bias"].to(torch.int64)
    save_file(tensors, folder / "model.safetensors")
    change(folder, "reading")
    with pytest.raises(BundleError, match="weights should be real numbers"):
        load_encoder_bundle(folder)
    (folder / "model.safetensors").write_bytes(weights)
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "more"]))
    (folder / "tokenizer.json").write_text(read_wordpiece(tmp_path / "vocab.txt").json())
    change(folder, "reading")
    with pytest.raises(BundleError, match="has 16 symbols and its model 15"):
        load_encoder_bundle(folder)
    (folder / "tokenizer.json").write_text("{}")
    change(folder, "reading")
    with pytest.raises(SegueError, match="no tokenizer.json"):
        load_encoder_bundle(folder)


def test_a_head_of_pooled_texts_needs_a_pooler() -> None:
    shape = EncoderConfig(**SHAPE, pooler=False)
    with pytest.raises(ConfigError, match="needs a pooler"):
        EncoderBundleConfig(model=shape, head=HeadConfig(task="score"), reading=EncoderReading(max_length=9))
    EncoderBundleConfig(
        model=shape, head=HeadConfig(task="tags", labels=("a", "b")), reading={"max_length": 9}
    )
