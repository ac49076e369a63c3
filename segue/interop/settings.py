"""Settings that the authors' code and Hugging Face's port of it share, under their names and ours."""

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, Field

from segue.config import Reach, Settings, XLConfig
from segue.errors import SourceError


class ForeignConfig(Settings):
    """The keys of a foreign config that segue uses; other keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    n_layer: int
    n_head: int
    d_model: int
    d_head: int
    d_inner: int
    d_embed: int | None = None
    div_val: int = 1
    cutoffs: tuple[int, ...] = ()
    tie_projs: tuple[bool, ...] = (False,)
    pre_lnorm: bool = False
    clamp_len: int = -1
    same_length: bool = False
    mem_len: int = Field(0, ge=0)
    sample_softmax: int = Field(-1, le=0)
    dropout: float = 0.0
    dropatt: float = 0.0


def shape_values(theirs: ForeignConfig) -> dict[str, Any]:
    """The model's shape, as values for XLConfig."""
    return {
        "width": theirs.d_model,
        "embedding": theirs.d_embed or theirs.d_model,
        "cutoffs": theirs.cutoffs,
        "divisor": theirs.div_val,
        "tied_projections": _tails_tied(theirs.tie_projs, len(theirs.cutoffs) + 1),
        "layers": theirs.n_layer,
        "heads": theirs.n_head,
        "head_width": theirs.d_head,
        "feedforward": theirs.d_inner,
        "norm": "pre" if theirs.pre_lnorm else "post",
        "dropout": theirs.dropout,
        "attention_dropout": theirs.dropatt,
    }


def reach_values(theirs: ForeignConfig) -> dict[str, Any]:
    """The reading settings, as values for Reach; their `same_length` is a span as long as the memory."""
    return {
        "memory": theirs.mem_len,
        "clamp": theirs.clamp_len if theirs.clamp_len > 0 else None,
        "span": max(1, theirs.mem_len) if theirs.same_length else None,
    }


def foreign_values(ours: XLConfig, reach: Reach) -> dict[str, Any]:
    """The opposite direction: values for ForeignConfig."""
    if ours.pattern != "full":
        raise SourceError(
            f"these layouts have full attention alone; this model has the pattern {ours.pattern!r}"
        )
    if ours.layer_embeddings:
        raise SourceError(
            "these layouts have one embedding; this model has layer_embeddings, one in each layer"
        )
    if ours.ngrams > 1:
        raise SourceError("these layouts have an embedding of single tokens; this model has ngrams too")
    if ours.divisor > 1 and not ours.head_projection and ours.embedding == ours.width:
        raise SourceError("these layouts project every cluster; this model's head cluster has no projection")
    return {
        "n_layer": ours.layers,
        "n_head": ours.heads,
        "d_model": ours.width,
        "d_head": ours.head_width,
        "d_inner": ours.feedforward,
        "d_embed": ours.embedding,
        "div_val": ours.divisor,
        "cutoffs": ours.cutoffs,
        "tie_projs": (False, *[ours.tied_projections] * (ours.clusters - 1)),
        "pre_lnorm": ours.norm == "pre",
        "clamp_len": reach.clamp or -1,
        "same_length": reach.span is not None and reach.span == reach.memory,
        "mem_len": reach.memory,
        "dropout": ours.dropout,
        "dropatt": ours.attention_dropout,
    }


def lost_settings(reach: Reach, *, initial: str) -> list[str]:
    """Notes on the settings of a reach that the layouts cannot express, and that are lost."""
    notes = []
    if reach.span is not None and reach.span != reach.memory:
        notes.append(f"span {reach.span} is not written: the layout has only span = memory ({reach.memory})")
    if reach.pinned:
        notes.append(f"pinned {reach.pinned} is not written: the layout has no pinned rows")
    if reach.initial != initial:
        notes.append(f"initial={reach.initial!r} is not written: code of that layout starts with {initial!r}")
    return notes


def _tails_tied(tied: Sequence[bool], clusters: int) -> bool:
    """Their `tie_projs`, a flag per cluster, as our one flag for all tail clusters."""
    flags = [*tied, *[False] * clusters][:clusters]
    if flags[0] or len(set(flags[1:])) > 1:
        raise SourceError(
            f"tie_projs {list(tied)} ties the head or only some tails; segue ties all tail clusters or none"
        )
    return clusters == 1 or flags[1]
