"""Encoders in the layout of Hugging Face's BERT and ALBERT: the inverse of `bert.py`, with the same table of names."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segue.checkpoint import TextEncoder, write_json, write_tensors
from segue.config import EncoderConfig, HeadConfig
from segue.errors import SourceError
from segue.interop.bert import ACTIVATIONS, ALBERT, BERT, Layout, Weights
from segue.interop.encoders import POOLING
from segue.nn.encoder import EPSILON
from segue.text.wordpiece import CLS, MASK, PAD, SEP, UNKNOWN

HEADS = {
    "text": "ForSequenceClassification",
    "score": "ForSequenceClassification",
    "tags": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "masked": "ForMaskedLM",
}
SYMBOLS = {"pad_token": PAD, "unk_token": UNKNOWN, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}


def write_bert(encoder: TextEncoder, folder: Path) -> list[str]:
    """Write weights, config.json and tokenizer into a folder; returns notes on what the layout cannot express."""
    shape, head = encoder.model.config, encoder.model.task
    _check(shape, head)
    write_tensors(folder / "model.safetensors", bert_weights(encoder))
    write_json(folder / "config.json", bert_config(shape, head, encoder.tokenizer.padding))
    (folder / "tokenizer.json").write_text(encoder.tokenizer.json(), encoding="utf-8")
    known = encoder.tokenizer.file.get_vocab()
    settings: dict[str, Any] = {name: symbol for name, symbol in SYMBOLS.items() if symbol in known}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": encoder.reading.max_length}
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(folder / "tokenizer_config.json", settings)
    _write_sentence_settings(encoder, folder)
    return _notes(shape, head)


def _notes(shape: EncoderConfig, head: HeadConfig | None) -> list[str]:
    """What the library's class makes of what it does not know or does not find."""
    notes = []
    if head is not None and head.pairs:
        notes.append("that the head reads pairs of texts is not written")
    if head is not None and shape.pooler and not head.pooled:
        notes.append(
            f"{architecture(shape, head)} has no pooler: it leaves out the encoder's, which is written"
        )
    if head is None and not shape.pooler:
        notes.append(
            "the encoder has no pooler; load it with add_pooling_layer=False, or a random one is made"
        )
    return notes


def _write_sentence_settings(encoder: TextEncoder, folder: Path) -> None:
    """How the vector of a text is made, as sentence-transformers writes it; Hugging Face's library ignores it."""
    reading, modules = encoder.reading, {"": "Transformer", "1_Pooling": "Pooling"}
    modules |= {"2_Normalize": "Normalize"} if reading.normalize else {}
    rows = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules.items())
    ]
    write_json(folder / "modules.json", rows)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": reading.max_length, "do_lower_case": False}
    )
    (folder / "1_Pooling").mkdir()
    chosen = {name: ours == reading.pooling for name, ours in POOLING.items()}
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": encoder.model.config.width, **chosen},
    )


def bert_config(shape: EncoderConfig, head: HeadConfig | None, padding: int) -> dict[str, Any]:
    """The content of config.json."""
    albert = _is_albert(shape)
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == shape.activation)
    values: dict[str, Any] = {
        "architectures": [architecture(shape, head)],
        "model_type": "albert" if albert else "bert",
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward,
        "max_position_embeddings": shape.max_positions,
        "type_vocab_size": shape.types,
        "hidden_act": activation,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.attention_dropout,
        "layer_norm_eps": EPSILON,
        "pad_token_id": padding,
    }
    if albert:
        values |= {"embedding_size": shape.embedding, "num_hidden_groups": 1, "inner_group_num": 1}
        values["classifier_dropout_prob"] = shape.dropout
    if head is not None and head.labels:
        values["id2label"] = {str(number): label for number, label in enumerate(head.labels)}
        values["label2id"] = {label: number for number, label in enumerate(head.labels)}
    if head is not None and head.task == "score":
        values |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    return values


def architecture(shape: EncoderConfig, head: HeadConfig | None) -> str:
    """The name of the library's class."""
    family = "Albert" if _is_albert(shape) else "Bert"
    if head is None:
        return f"{family}Model"
    return f"{family}ForPreTraining" if head.next_sentence else f"{family}{HEADS[head.task]}"


def bert_weights(encoder: TextEncoder) -> Weights:
    """The weights under the library's names. The table of words is written once: a masked-LM head is tied to it."""
    shape, head = encoder.model.config, encoder.model.task
    layout, ours = (ALBERT if _is_albert(shape) else BERT), dict(encoder.model.state_dict())
    inside = "" if head is None else "albert." if layout is ALBERT else "bert."
    theirs = {f"{inside}{name}": weight for name, weight in _encoder_weights(ours, shape, layout).items()}
    return {**theirs, **_head_weights(ours, head, layout)}


def _encoder_weights(ours: Weights, shape: EncoderConfig, layout: Layout) -> Weights:
    theirs: Weights = {}
    for name, own in layout.ends.items():
        for part in ("weight", "bias"):
            if f"encoder.{own}.{part}" in ours:
                theirs[f"{name}.{part}"] = ours[f"encoder.{own}.{part}"]
    if layout is ALBERT and shape.embedding == shape.width:  # it has this layer at any width
        like = ours["encoder.words.weight"]
        theirs["encoder.embedding_hidden_mapping_in.weight"] = torch.eye(shape.width).to(like)
        theirs["encoder.embedding_hidden_mapping_in.bias"] = like.new_zeros(shape.width)
    for layer in range(1 if shape.shared_layers else shape.layers):
        inside, here = layout.layer.format(layer), f"encoder.blocks.{layer}"
        for part in ("weight", "bias"):
            for name, own in layout.names.items():
                theirs[f"{inside}{name}.{part}"] = ours[f"{here}.{own}.{part}"]
            halves: tuple[Tensor, ...] = ours[f"{here}.attention.key_value.{part}"].chunk(2)
            for side, half in zip(("key", "value"), halves, strict=True):
                theirs[f"{inside}{layout.key_value.format(side)}.{part}"] = half.clone()
    return theirs


def _head_weights(ours: Weights, head: HeadConfig | None, layout: Layout) -> Weights:
    if head is None:
        return {}
    if head.task != "masked":
        name = "qa_outputs" if head.task == "span" else "classifier"
        return {f"{name}.{part}": ours[f"head.linear.{part}"] for part in ("weight", "bias")}
    predictions = "predictions" if layout is ALBERT else "cls.predictions"
    theirs = {f"{predictions}.bias": ours["head.bias"]}
    names = {**layout.head, "cls.seq_relationship": "next_sentence"} if head.next_sentence else layout.head
    for name, own in names.items():
        theirs |= {f"{name}.{part}": ours[f"head.{own}.{part}"] for part in ("weight", "bias")}
    return theirs


def _is_albert(shape: EncoderConfig) -> bool:
    return shape.shared_layers or shape.embedding != shape.width


def _check(shape: EncoderConfig, head: HeadConfig | None) -> None:
    """Refuse what neither BERT nor ALBERT is."""
    if not shape.sees_all:
        kind = f"a window of {shape.window}" if shape.window else f"{shape.attention} attention"
        raise SourceError(
            f"BERT attends to all tokens; this encoder has {kind}, which its layout cannot express"
        )
    if _is_albert(shape) and not shape.shared_layers:
        raise SourceError(
            f"an embedding of {shape.embedding} below the width {shape.width} is ALBERT's, whose layers share their "
            "weights; this encoder's do not"
        )
    if shape.heads * shape.head_width != shape.width:
        raise SourceError(
            f"BERT's heads share the width out; {shape.heads} heads of {shape.head_width} are not {shape.width}"
        )
    if _is_albert(shape) and head is not None and head.next_sentence:
        raise SourceError("ALBERT has no head for next sentences, which this encoder has")
