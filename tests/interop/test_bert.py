"""BERT equals the model of transformers where that is installed; other tests need no library."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from segue.config import EncoderConfig
from segue.errors import InputError, SourceError
from segue.interop.bert import NAMES, load_bert
from segue.nn.encoder import Encoder
from segue.text.wordpiece import read_wordpiece

SHAPE = {"vocab": 30, "width": 16, "layers": 2, "heads": 2, "feedforward": 24, "max_positions": 12}
PIECES = "[PAD] [UNK] [CLS] [SEP] the animal did n ##o ##t cross street ' . un ##tir ##ed".split()  # noqa: SIM905


ENDS = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
"""Names of weights outside the layers, ours and theirs."""


def build() -> Encoder:
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(**SHAPE)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def test_it_equals_the_library(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64
    )
    theirs = transformers.BertModel(config).eval()
    theirs.save_pretrained(tmp_path / "bert", safe_serialization=True)
    ids, types = torch.randint(0, 99, (3, 11)), torch.randint(0, 2, (3, 11))
    mask = (torch.arange(11) < torch.tensor([[11], [5], [1]])).long()
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=mask, token_type_ids=types)
        output = load_bert(tmp_path / "bert")(ids, mask, types)
    assert_close(output.last_hidden_state, wanted.last_hidden_state, rtol=0, atol=1e-5)
    assert_close(output.pooler_output, wanted.pooler_output, rtol=0, atol=1e-5)


def test_what_is_masked_changes_nothing() -> None:
    model = build()
    ids, other = torch.randint(0, 30, (2, 8)), torch.randint(0, 30, (2, 8))
    mask = torch.tensor([[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]])
    mixed = torch.where(mask.bool(), ids, other)
    wanted, output = model(ids, mask), model(mixed, mask)
    assert_close(output.last_hidden_state[mask.bool()], wanted.last_hidden_state[mask.bool()])
    assert_close(output.pooler_output, wanted.pooler_output)
    assert_close(model(ids[1:, :3]).pooler_output, wanted.pooler_output[1:])
    assert model(ids, torch.zeros_like(ids)).last_hidden_state.isfinite().all()
    assert not torch.equal(model(ids).pooler_output, model(ids, None, torch.ones_like(ids)).pooler_output)


def test_what_cannot_be_read_is_refused() -> None:
    model, ids = build(), torch.zeros(1, 13, dtype=torch.int64)
    with pytest.raises(InputError, match="13 tokens are more than the 12 positions"):
        model(ids)
    with pytest.raises(InputError, match=r"attention_mask should have the shape of input_ids, \(1, 5\)"):
        model(ids[:, :5], torch.ones(1, 4))
    with pytest.raises(InputError, match=r"shape \(texts, tokens\)"):
        model(ids[0])


def test_a_folder_that_is_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="config.json could not be read: No such file"):
        load_bert(tmp_path)
    config = {"model_type": "roberta"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match="model_type is 'roberta'; only 'bert' is supported"):
        load_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(SourceError, match="has no 'vocab_size'"):
        load_bert(tmp_path)
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 8, "type_vocab_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    with pytest.raises(SourceError, match="no readable model.safetensors"):
        load_bert(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(SourceError, match="do not fit its config.json"):
        load_bert(tmp_path)


def test_texts_and_pairs_with_their_signs(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    pieces = read_wordpiece(tmp_path / "vocab.txt")
    batch = pieces.encode(["The animal", ("the street", "untired?")], max_length=8)
    said = [[PIECES[number] for number in row] for row in batch.input_ids.tolist()]
    assert said[0] == ["[CLS]", "the", "animal", "[SEP]", *["[PAD]"] * 4]
    assert said[1] == ["[CLS]", "the", "street", "[SEP]", "un", "##tir", "##ed", "[SEP]"]
    assert batch.truncated == 1  # the question mark
    assert batch.token_type_ids.tolist()[1] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert batch.attention_mask.tolist()[0] == [1, 1, 1, 1, 0, 0, 0, 0]
    pieces.file.save(str(tmp_path / "tokenizer.json"))
    again = read_wordpiece(tmp_path / "tokenizer.json").encode(
        ["The animal", ("the street", "untired?")], max_length=8
    )
    assert again.input_ids.tolist() == batch.input_ids.tolist()


def test_a_vocabulary_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(SourceError, match=r"lacks \[CLS\], \[SEP\], \[UNK\]"):
        read_wordpiece(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match="no tokenizer.json"):
        read_wordpiece(tmp_path / "tokenizer.json")
    with pytest.raises(SourceError, match="there is no file"):
        read_wordpiece(tmp_path / "nothing.txt")


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 10**12}, {"num_hidden_layers": 10**9}, {"vocab_size": 31}]
)
def test_a_config_that_does_not_fit_is_one_line(changes: dict[str, int], tmp_path: Path) -> None:
    model, theirs = build(), {value: key for key, value in NAMES.items()}
    weights = {}
    for name, weight in model.state_dict().items():
        room, _, part = name.rpartition(".")
        if room.startswith("blocks."):
            _, layer, own = room.split(".", 2)
            there = f"encoder.layer.{layer}."
            if own == "attention.key_value":
                halves = dict(zip(("key", "value"), weight.chunk(2), strict=True))
                weights |= {
                    f"{there}attention.self.{side}.{part}": half.clone() for side, half in halves.items()
                }
            else:
                weights[f"{there}{theirs[own]}.{part}"] = weight
        else:
            weights[f"{ENDS[room]}.{part}"] = weight
    save_file({**weights, "embeddings.position_ids": torch.arange(12)}, tmp_path / "model.safetensors")
    config = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 24, "max_position_embeddings": 12, "type_vocab_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_bert(tmp_path)
    assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(SourceError) as caught:
        load_bert(tmp_path)
    assert "\n" not in str(caught.value)
