"""Conversion from the authors' TensorFlow code: the models that they published.

Its kernels are transposed. Its memory starts as zeros that are attended to, and its `same_length` lets a token see the
whole memory and itself, a key more than their PyTorch code. The shape of the model is read off the tensors.

Its norms add 1e-12 to a variance, ours (and both ports of it) 1e-5; variances are near 1.
"""

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from pydantic import ConfigDict, Field, NonNegativeInt
from torch import Tensor, cat

from segue.config import Reach, Reading, Settings, XLConfig
from segue.errors import SourceError
from segue.interop.layout import Entry, imported
from segue.nn.xl import TransformerXL

SCOPE = "transformer"
EMBEDDING, SOFTMAX = f"{SCOPE}/adaptive_embed", f"{SCOPE}/adaptive_softmax"
TRANSPOSED = ("kernel", "proj_W", "proj")
JOINED_BIAS = f"{SOFTMAX}/b"
"""The name that we give to the joined biases of all clusters where they share a table."""


class TensorFlowConfig(Settings):
    """The flags of their commands and the keys of corpus-info.json; what is absent is as the tensors say."""

    model_config = ConfigDict(extra="ignore")

    tgt_len: int = Field(128, gt=0)
    mem_len: NonNegativeInt = 384
    clamp_len: int = -1
    same_length: bool = True
    vocab_size: int | None = None
    cutoffs: tuple[int, ...] | None = None  # with 0 before them and the vocabulary behind
    n_layer: int | None = None
    d_model: int | None = None
    d_embed: int | None = None
    n_head: int | None = None
    d_head: int | None = None
    d_inner: int | None = None
    div_val: int | None = None
    untie_r: bool | None = None
    proj_share_all_but_first: bool | None = None
    proj_same_dim: bool | None = None


def build(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """The model, in the dtype of its weights."""
    theirs = TensorFlowConfig(**config)
    shape = shape_of(weights, theirs.div_val)
    _check_agrees(theirs, shape)
    turned = {
        name: weight.T if name.rsplit("/", 1)[-1] in TRANSPOSED and weight.dim() == 2 else weight
        for name, weight in weights.items()
    }
    if shape.divisor == 1 and shape.clusters > 1:
        pieces = [turned.pop(f"{SOFTMAX}/cutoff_{cluster}/b") for cluster in range(shape.clusters)]
        turned[JOINED_BIAS] = cat(pieces)
    return imported(shape, entries, turned)


def reading(config: Mapping[str, Any]) -> Reading:
    """How their evaluation reads."""
    theirs = TensorFlowConfig(**config)
    span = theirs.mem_len + 1 if theirs.same_length else None
    clamp = theirs.clamp_len if theirs.clamp_len > 0 else None
    return Reading(
        segment=theirs.tgt_len,
        reach=Reach(memory=theirs.mem_len, clamp=clamp, span=span, initial="zeros"),
    )


def shape_of(weights: Mapping[str, Tensor], divisor: int | None = None) -> XLConfig:
    """The shape of the model that these tensors are."""
    tables = _numbered(weights, rf"{EMBEDDING}/cutoff_(\d+)/lookup_table", 2)
    tables = tables or [_checked(weights, f"{EMBEDDING}/lookup_table", 2)]
    clusters = _numbered(weights, rf"{SOFTMAX}/cutoff_(\d+)/b", 1)
    clusters = clusters or [_checked(weights, f"{SOFTMAX}/bias", 1)]
    bias = weights.get(f"{SCOPE}/r_w_bias")
    if bias is None or bias.dim() not in (2, 3):
        raise SourceError(f"{SCOPE}/r_w_bias should be a bias of each head; is it a Transformer-XL?")
    widths = [table.size(1) for table in tables]
    sizes = [len(cluster) for cluster in clusters]
    return XLConfig(
        vocab=sum(sizes),
        width=_checked(weights, f"{SCOPE}/layer_0/rel_attn/r/kernel", 2).size(0),
        embedding=widths[0],
        cutoffs=tuple(accumulate(sizes[:-1])),
        divisor=divisor if divisor is not None else _divisor(widths),
        tied_projections=f"{SOFTMAX}/cutoff_1/proj" not in weights,
        head_projection=len(tables) == 1 or f"{EMBEDDING}/cutoff_0/proj_W" in weights,
        layers=max(1, len(_numbered(weights, rf"{SCOPE}/layer_(\d+)/rel_attn/qkv/kernel", 2))),
        heads=bias.size(-2),
        head_width=bias.size(-1),
        feedforward=_checked(weights, f"{SCOPE}/layer_0/ff/layer_1/kernel", 2).size(1),
        biases="per-layer" if bias.dim() == 3 else "shared",
    )


def entries(config: XLConfig) -> list[Entry]:
    """Their names (kernels transposed) and ours."""
    return [*_layer_entries(config), *_table_entries(config), *_projection_entries(config)]


def _layer_entries(config: XLConfig) -> list[Entry]:
    listed = [
        Entry(f"{SCOPE}/r_w_bias", ("positions.content_bias",)),
        Entry(f"{SCOPE}/r_r_bias", ("positions.position_bias",)),
    ]
    for layer in range(config.layers):
        theirs, ours = f"{SCOPE}/layer_{layer}", f"blocks.{layer}"
        attention = (f"{ours}.attention.query.weight", f"{ours}.attention.key_value.weight")
        listed += [
            Entry(f"{theirs}/rel_attn/qkv/kernel", attention),
            Entry(f"{theirs}/rel_attn/r/kernel", (f"positions.projections.{layer}.weight",)),
            Entry(f"{theirs}/rel_attn/o/kernel", (f"{ours}.attention.out.weight",)),
        ]
        for their_part, our_part in (("rel_attn", "attention_norm"), ("ff", "feed_forward_norm")):
            listed.append(Entry(f"{theirs}/{their_part}/LayerNorm/gamma", (f"{ours}.{our_part}.weight",)))
            listed.append(Entry(f"{theirs}/{their_part}/LayerNorm/beta", (f"{ours}.{our_part}.bias",)))
        for their_part, our_part in (("layer_1", "inner"), ("layer_2", "outer")):
            for kind, own in (("kernel", "weight"), ("bias", "bias")):
                listed.append(
                    Entry(f"{theirs}/ff/{their_part}/{kind}", (f"{ours}.feed_forward.{our_part}.{own}",))
                )
    return listed


def _table_entries(config: XLConfig) -> list[Entry]:
    listed = []
    if config.divisor == 1:
        bias = JOINED_BIAS if config.clusters > 1 else f"{SOFTMAX}/bias"
        listed.append(Entry(f"{EMBEDDING}/lookup_table", ("vocabulary.tables.0",)))
        listed.append(Entry(bias, ("vocabulary.biases.0",)))
    else:
        for cluster in range(config.clusters):
            place = f"cutoff_{cluster}"
            listed.append(Entry(f"{EMBEDDING}/{place}/lookup_table", (f"vocabulary.tables.{cluster}",)))
            listed.append(Entry(f"{SOFTMAX}/{place}/b", (f"vocabulary.biases.{cluster}",)))
    if config.clusters > 1:
        listed.append(Entry(f"{SOFTMAX}/cutoff_0/cluster_W", ("vocabulary.cluster_table",)))
        listed.append(Entry(f"{SOFTMAX}/cutoff_0/cluster_b", ("vocabulary.cluster_bias",)))
    return listed


def _projection_entries(config: XLConfig) -> list[Entry]:
    """Without clusters, their code has one projection for both ends, and ours two: it is written to both."""
    listed = []
    for table in range(1 if config.divisor == 1 else config.clusters):
        place = EMBEDDING if config.divisor == 1 else f"{EMBEDDING}/cutoff_{table}"
        if config.projected(table):
            listed.append(Entry(f"{place}/proj_W", (f"vocabulary.projections.{table}",)))
    for cluster in range(config.clusters):
        if config.projected(cluster) and not (cluster and config.tied_projections):
            own = f"{SOFTMAX}/cutoff_{cluster}/proj" if config.clusters > 1 else f"{EMBEDDING}/proj_W"
            listed.append(Entry(own, (f"vocabulary.out_projections.{cluster}",)))
    return listed


def _check_agrees(theirs: TensorFlowConfig, shape: XLConfig) -> None:
    """Refuse a config that contradicts the tensors."""
    tensors = {
        "vocab_size": shape.vocab,
        "cutoffs": shape.edges if shape.clusters > 1 else (),
        "n_layer": shape.layers,
        "d_model": shape.width,
        "d_embed": shape.embedding,
        "n_head": shape.heads,
        "d_head": shape.head_width,
        "d_inner": shape.feedforward,
        "untie_r": shape.biases == "per-layer",
    }
    if shape.clusters > 1 and shape.projected(1):
        tensors["proj_share_all_but_first"] = shape.tied_projections
    if shape.divisor > 1 and shape.embedding == shape.width:
        tensors["proj_same_dim"] = shape.head_projection
    for name, value in tensors.items():
        claimed = getattr(theirs, name)
        if claimed is not None and claimed != value:
            raise SourceError(
                f"the config says {name} {claimed}, and the tensors {value}; does it belong to them?"
            )


def _divisor(widths: list[int]) -> int:
    """The divisor that gives the widths of the clusters' tables."""
    for divisor in range(1, widths[0] + 1):
        if widths == [widths[0] // divisor**cluster for cluster in range(len(widths))]:
            return divisor
    raise SourceError(f"no div_val gives embeddings as wide as {widths}; is it the authors' model?")


def _numbered(weights: Mapping[str, Tensor], pattern: str, dimensions: int) -> list[Tensor]:
    """The tensors whose names match, in the order of the number in them, which counts from 0 without gaps."""
    names = {int(match[1]): name for name in weights if (match := re.fullmatch(pattern, name))}
    return [
        _checked(weights, names.get(number, pattern.replace(r"(\d+)", str(number))), dimensions)
        for number in range(max(names, default=-1) + 1)
    ]


def _checked(weights: Mapping[str, Tensor], name: str, dimensions: int) -> Tensor:
    weight = weights.get(name)
    if weight is None or weight.dim() != dimensions or not weight.numel():
        problem = "is missing" if weight is None else f"has shape {tuple(weight.shape)}"
        raise SourceError(f"the tensor {name} {problem}; is it the authors' Transformer-XL?")
    return weight
