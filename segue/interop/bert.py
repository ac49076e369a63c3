"""Weights and configs of Hugging Face's BERT and ALBERT, and the heads of their tasks, under our names.

Old and new names of a norm's weights (gamma, beta) and any prefix ("bert.", "albert.", a wrapper's) are understood.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segue.config import EncoderConfig, HeadConfig
from segue.errors import SourceError
from segue.interop.files import folder_weights
from segue.nn.deferred import blank
from segue.nn.encoder import Encoder
from segue.nn.fit import check_fit, check_size, too_large
from segue.nn.task_encoder import TaskEncoder
from segue.text.parsing import read_object

ENDS = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
}


class Layout(NamedTuple):
    """Where a family of models keeps its weights."""

    layer: str  # the prefix of a layer; {} is its number
    names: dict[str, str]  # in a layer, theirs and ours
    key_value: str  # {} is key or value: they are one matrix in segue
    ends: dict[str, str]  # outside the layers, theirs and ours
    head: dict[str, str]  # of the masked-LM head, theirs and ours


BERT = Layout(
    "encoder.layer.{}.",
    {
        "attention.self.query": "attention.query",
        "attention.output.dense": "attention.out",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.inner",
        "output.dense": "feed_forward.outer",
        "output.LayerNorm": "feed_forward_norm",
    },
    "attention.self.{}",
    {**ENDS, "pooler.dense": "pooler"},
    {"cls.predictions.transform.dense": "dense", "cls.predictions.transform.LayerNorm": "norm"},
)
ALBERT = Layout(
    "encoder.albert_layer_groups.0.albert_layers.{}.",
    {
        "attention.query": "attention.query",
        "attention.dense": "attention.out",
        "attention.LayerNorm": "attention_norm",
        "ffn": "feed_forward.inner",
        "ffn_output": "feed_forward.outer",
        "full_layer_layer_norm": "feed_forward_norm",
    },
    "attention.{}",
    {**ENDS, "pooler": "pooler", "encoder.embedding_hidden_mapping_in": "widened"},
    {"predictions.dense": "dense", "predictions.LayerNorm": "norm"},
)
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
"""Theirs and ours."""

Weights = dict[str, Tensor]


def build_encoder(config: Mapping[str, Any], weights: Mapping[str, Tensor], source: str) -> TaskEncoder:
    """The encoder in evaluation mode, with a head if the weights have one. `source` is its name in errors."""
    layout = ALBERT if config.get("model_type") == "albert" else BERT
    theirs = _plain_names(weights, source)
    _check_layers(config, theirs, layout, source)
    shape = encoder_config(config, source, pooler=f"{_pooler(layout)}.weight" in theirs)
    head = head_config(config, theirs, source, pooler=shape.pooler)
    try:
        ours = _encoder_weights(theirs, shape, layout) | _head_weights(theirs, head, layout)
    except (KeyError, RuntimeError) as error:
        raise SourceError(f"the weights in {source} do not fit its config.json: {error}") from None
    ours = {name: weight.float() if weight.dtype in HALVES else weight for name, weight in ours.items()}
    check_size(shape, ours, source, SourceError)
    with blank(), too_large(source, SourceError):
        model = TaskEncoder(shape, head)
    check_fit(ours, dict(model.state_dict()), source, SourceError)
    model.load_state_dict(ours, assign=True)
    return model.eval()


HALVES = (torch.float16, torch.bfloat16)
"""Precisions that a CPU computes slowly: such weights are read as float32."""


def load_bert(folder: Path | str) -> Encoder:
    """The encoder of a folder of Hugging Face, in evaluation mode, without its head and tokenizer."""
    folder = Path(folder)
    config = read_object(folder / "config.json")
    return build_encoder(config, folder_weights(folder), str(folder)).encoder


def encoder_config(theirs: Mapping[str, Any], source: str, *, pooler: bool) -> EncoderConfig:
    """Our shape of a config.json of BERT or ALBERT."""
    albert = theirs.get("model_type") == "albert"
    supported: dict[str, Any] = {"layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}
    supported |= {"num_hidden_groups": 1, "inner_group_num": 1} if albert else {"model_type": "bert"}
    for name, value in supported.items():
        if theirs.get(name, value) != value:
            raise SourceError(f"{source}: {name} is {theirs[name]!r}; only {value!r} is supported")
    activation = theirs.get("hidden_act", "gelu_new" if albert else "gelu")
    if activation not in ACTIVATIONS:
        raise SourceError(
            f"{source}: hidden_act is {activation!r}; only {', '.join(ACTIVATIONS)} are supported"
        )
    try:
        return EncoderConfig(
            vocab=theirs["vocab_size"],
            width=theirs["hidden_size"],
            embedding=theirs.get("embedding_size", 128) if albert else theirs["hidden_size"],
            layers=theirs["num_hidden_layers"],
            heads=theirs["num_attention_heads"],
            feedforward=theirs["intermediate_size"],
            max_positions=theirs["max_position_embeddings"],
            types=theirs["type_vocab_size"],
            activation=ACTIVATIONS[activation],
            shared_layers=albert,
            pooler=pooler,
            dropout=theirs.get("hidden_dropout_prob", 0.0),
            attention_dropout=theirs.get("attention_probs_dropout_prob", 0.0),
        )
    except KeyError as error:
        raise SourceError(f"{source}: its config.json has no {error}") from None


def head_config(
    theirs: Mapping[str, Any], weights: Weights, source: str, *, pooler: bool
) -> HeadConfig | None:
    """The head that the weights have: of masked words, of a text or its words, of spans; None without one."""
    if any(name.endswith("predictions.bias") for name in weights):
        return HeadConfig(task="masked", next_sentence=pooler and "cls.seq_relationship.weight" in weights)
    if "qa_outputs.weight" in weights:
        return HeadConfig(task="span")
    if "classifier.weight" not in weights:
        return None
    outputs = len(weights["classifier.weight"])
    architectures = theirs.get("architectures") or [""]
    tags = "TokenClassification" in str(architectures[0]) or not pooler
    if outputs == 1 and not tags:
        return HeadConfig(task="score")
    named = theirs.get("id2label")
    labels = [str(name) for name in named.values()] if isinstance(named, dict) else []
    if len(set(labels)) != outputs:  # a config may keep the two labels that are its default
        labels = [f"LABEL_{number}" for number in range(outputs)]
    if outputs < 2:
        raise SourceError(f"{source}: its classifier has {outputs} labels; two or more are needed")
    return HeadConfig(task="tags" if tags else "text", labels=tuple(labels))


def _plain_names(weights: Mapping[str, Tensor], source: str) -> Weights:
    """The weights without the prefix of the encoder, and with today's names of norms."""
    marked = [name for name in weights if name.endswith("embeddings.word_embeddings.weight")]
    if len(marked) != 1:
        raise SourceError(
            f"the weights in {source} do not fit its config.json: {len(marked)} of them are word embeddings"
        )
    prefix = marked[0].removesuffix("embeddings.word_embeddings.weight")
    wrapper = prefix.removesuffix("bert.").removesuffix(
        "al"
    )  # "model.bert." and "model.classifier." are of one model
    plain = {}
    for name, weight in weights.items():
        short = name.removeprefix(prefix) if name.startswith(prefix) else name.removeprefix(wrapper)
        short = short.replace(
            "predictions.decoder.bias", "predictions.bias"
        )  # the same bias under its other name
        plain[re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", short))] = weight
    return plain


def _check_layers(theirs: Mapping[str, Any], weights: Weights, layout: Layout, source: str) -> None:
    """Refuse weights of more layers than the config says: the rest would be left out silently."""
    count = 1 if layout is ALBERT else theirs.get("num_hidden_layers")
    more = layout.layer.format(count)
    if any(name.startswith(more) for name in weights):
        raise SourceError(
            f"the weights in {source} do not fit its config.json: they have more than {count} layers"
        )


def _pooler(layout: Layout) -> str:
    return next(theirs for theirs, ours in layout.ends.items() if ours == "pooler")


def _encoder_weights(theirs: Weights, shape: EncoderConfig, layout: Layout) -> Weights:
    left_out = {"pooler"} if not shape.pooler else set()
    left_out |= {"widened"} if shape.embedding == shape.width else set()
    ours: Weights = {}
    for name, own in layout.ends.items():
        parts = ("weight",) if own in ("words", "places", "types") else ("weight", "bias")
        if own not in left_out:
            ours |= {f"encoder.{own}.{part}": theirs[f"{name}.{part}"] for part in parts}
    for layer in range(1 if shape.shared_layers else shape.layers):
        inside, here = layout.layer.format(layer), f"encoder.blocks.{layer}"
        for part in ("weight", "bias"):
            for name, own in layout.names.items():
                ours[f"{here}.{own}.{part}"] = theirs[f"{inside}{name}.{part}"]
            pair = [theirs[f"{inside}{layout.key_value.format(side)}.{part}"] for side in ("key", "value")]
            ours[f"{here}.attention.key_value.{part}"] = torch.cat(pair)
    return ours


def _head_weights(theirs: Weights, head: HeadConfig | None, layout: Layout) -> Weights:
    if head is None:
        return {}
    if head.task != "masked":
        name = "qa_outputs" if head.task == "span" else "classifier"
        return {f"head.linear.{part}": theirs[f"{name}.{part}"] for part in ("weight", "bias")}
    predictions = next(iter(layout.head)).split(".dense")[0].removesuffix(".transform")
    ours = {"head.bias": theirs[f"{predictions}.bias"]}
    names = {**layout.head, "cls.seq_relationship": "next_sentence"} if head.next_sentence else layout.head
    for name, own in names.items():
        ours |= {f"head.{own}.{part}": theirs[f"{name}.{part}"] for part in ("weight", "bias")}
    table = theirs.get(f"{predictions}.decoder.weight")
    if table is not None and not torch.equal(table, theirs["embeddings.word_embeddings.weight"]):
        raise RuntimeError("its masked-LM head has a table of words of its own; only a tied one is supported")
    return ours
