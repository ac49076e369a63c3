"""BERT and ALBERT equal the models of Hugging Face, whose outputs were recorded (`tests/reference/encoders`)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from segue.config import EncoderConfig
from segue.errors import InputError, SourceError
from segue.interop.bert import BERT, build_encoder, load_bert
from segue.nn.encoder import Encoder
from segue.text.wordpiece import read_wordpiece

RECORDED = Path(__file__).parent.parent / "reference" / "encoders"
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


def recorded(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts that `record.py` wrote with the real library."""
    with safe_open(RECORDED / f"{name}.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        return tensors, dict(file.metadata())


@pytest.mark.parametrize("name", ["bert-pretraining", "bert-text", "bert-tags", "bert-span", "albert-masked"])
def test_every_output_equals_the_librarys(name: str) -> None:
    tensors, facts = recorded(name)
    weights = {key.removeprefix("weights."): t for key, t in tensors.items() if key.startswith("weights.")}
    config = json.loads(facts["config"]) | {"architectures": [facts["kind"]]}
    model = build_encoder(config, weights, name)
    batch = [tensors[key] for key in ("input_ids", "attention_mask", "token_type_ids")]
    with torch.no_grad():
        encoded = model.encoder(*batch, output_hidden_states=True, output_attentions=True)
        predicted = model(*batch)
    seen = batch[1].bool()
    assert_close(encoded.last_hidden_state[seen], tensors["last_hidden_state"][seen])
    if "pooler_output" in tensors:
        assert_close(encoded.pooler_output, tensors["pooler_output"])
    assert encoded.hidden_states is not None and encoded.attentions is not None  # noqa: PT018
    layers = model.config.layers
    assert (len(encoded.hidden_states), len(encoded.attentions)) == (layers + 1, layers)
    for number, states in enumerate(encoded.hidden_states):
        assert_close(states[seen], tensors[f"hidden_states.{number}"][seen])
    for number, attention in enumerate(encoded.attentions):
        assert_close(attention, tensors[f"attentions.{number}"])
    compared = 0
    for key in ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits"):
        if key in tensors:
            ours, theirs = getattr(predicted, key), tensors[key]
            by_token = ours.shape[:2] == seen.shape
            assert_close(ours[seen] if by_token else ours, theirs[seen] if by_token else theirs)
            compared += 1
    assert compared == {"bert-pretraining": 2, "bert-span": 2}.get(name, 1)
    assert model.task is not None
    if model.task.task in ("text", "tags"):
        assert model.task.labels == ("O", "B-x", "I-x")


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
    table = {"embeddings.word_embeddings.weight": torch.zeros(9, 8)}
    save_file(table, tmp_path / "model.safetensors")
    with pytest.raises(SourceError, match="model_type is 'roberta'; only 'bert' is supported"):
        load_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(SourceError, match="has no 'vocab_size'"):
        load_bert(tmp_path)
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 8, "type_vocab_size": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="has neither model.safetensors nor pytorch_model.bin"):
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
    model, theirs = build(), {value: key for key, value in BERT.names.items()}
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
