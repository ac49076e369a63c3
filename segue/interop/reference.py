"""Conversion from and to the authors' PyTorch code: its state dict and its constructor's arguments.

Its absolute positions count back from the end of a segment and restart in each, so they are imported for segments of
`tgt_len` tokens without memory. Its absolute sinusoids are imported as an equal table of `learned` positions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from segue.config import Reach, Reading, XLConfig
from segue.errors import SourceError
from segue.interop.layout import Entry, exported, imported, inverse_frequencies, shared_entries
from segue.interop.settings import ForeignConfig, foreign_values, lost_settings, reach_values, shape_values
from segue.nn.positions import LearnedPositions, sinusoids
from segue.nn.xl import TransformerXL

ENCODINGS = ("xl", "shaw", "learned", "per-layer")
"""Our encodings in the order of their `attn_type`; type 2, their sinusoids, becomes a table."""


class ReferenceConfig(ForeignConfig):
    """The constructor's arguments."""

    n_token: int
    tie_weight: bool = True
    attn_type: Literal[0, 1, 2, 3] = 0
    tgt_len: int = Field(128, gt=0)
    ext_len: Literal[0] = 0


def build(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[TransformerXL, Reach]:
    """The model, in the dtype of its weights, and the reach of its config."""
    theirs = ReferenceConfig(**config)
    shape = _shape(theirs)
    model = imported(shape, entries, weights)
    if isinstance(model.positions, LearnedPositions):
        table = model.positions.table
        table.data = _sinusoids_from_the_end(theirs, table.dtype)
    return model, _reach(theirs)


def reading(config: Mapping[str, Any]) -> Reading:
    theirs = ReferenceConfig(**config)
    return Reading(segment=theirs.tgt_len, reach=_reach(theirs))


def export(model: TransformerXL, read: Reading) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Its state dict, its config, and notes on settings that these cannot express."""
    ours = model.config
    theirs = ReferenceConfig(
        **foreign_values(ours, read.reach),
        n_token=ours.vocab,
        tie_weight=ours.tied,
        attn_type=_attention_type(ours),
        tgt_len=_segment_length(ours, read),
    )
    if isinstance(model.positions, LearnedPositions):
        _check_sinusoids(model.positions.table, theirs)
    weights = exported(dict(model.state_dict()), entries(ours))
    if theirs.attn_type in (0, 2):
        dtype = model.vocabulary.tables[0].dtype
        weights["pos_emb.inv_freq"] = inverse_frequencies(ours, dtype)
    notes = lost_settings(read.reach, initial="empty")
    if theirs.tgt_len != read.segment:
        notes.append(
            f"segments of {read.segment} tokens become {theirs.tgt_len}: their table has tgt_len + mem_len rows"
        )
    return weights, theirs.model_dump(mode="json"), notes


def entries(config: XLConfig) -> list[Entry]:
    """Their names for all our weights (or gradients), for `layout.exported`."""
    biases = config.layers if config.biases == "per-layer" else 1
    bias = (biases, config.heads, config.head_width)[1 if biases == 1 else 0 :]
    rows = (config.layers, config.max_positions, config.heads, config.head_width)
    positions: Sequence[Entry] = ()
    match config.encoding:
        case "xl":
            positions = (
                Entry("r_w_bias", ("positions.content_bias",), shape=bias),
                Entry("r_r_bias", ("positions.position_bias",), shape=bias),
            )
        case "shaw":  # their last row is distance 0
            positions = (
                Entry("r_w_bias", ("positions.content_bias",)),
                Entry("r_emb", ("positions.table",), flip=1),
                Entry("r_bias", ("positions.table_bias",), flip=1),
            )
        case "per-layer":
            positions = (Entry("r_emb", ("positions.table",), shape=rows),)
    return [*shared_entries(config, "", reversed_clusters=True), *positions]


def _shape(theirs: ReferenceConfig) -> XLConfig:
    if theirs.attn_type >= 2 and theirs.mem_len:
        raise SourceError(
            f"attn_type {theirs.attn_type} with mem_len {theirs.mem_len}: absolute positions that restart in every "
            "segment cannot distinguish memory from segment; only mem_len 0 is supported"
        )
    return XLConfig(
        **shape_values(theirs),
        vocab=theirs.n_token,
        tied=theirs.tie_weight,
        encoding=ENCODINGS[theirs.attn_type],
        max_positions=theirs.tgt_len if theirs.attn_type >= 2 else 0,
        max_distance=theirs.tgt_len + theirs.mem_len if theirs.attn_type == 1 else 0,
        biases="per-layer" if theirs.attn_type == 1 else "shared",
    )


def _reach(theirs: ReferenceConfig) -> Reach:
    if theirs.attn_type < 2:
        return Reach(**reach_values(theirs))
    return Reach(**{**reach_values(theirs), "clamp": None}, positions="restart")  # the clamp is in the table


def _sinusoids_from_the_end(theirs: ReferenceConfig, dtype: torch.dtype) -> Tensor:
    """(T, C) Row p is their sinusoid for position p of a segment: that of T-1-p, clamped."""
    from_end = torch.arange(theirs.tgt_len - 1, -1, -1, device="cpu")
    clamp = theirs.clamp_len if theirs.clamp_len > 0 else None
    return sinusoids(from_end.clamp(0, clamp), theirs.d_model, dtype)


def _attention_type(ours: XLConfig) -> int:
    if ours.encoding not in ENCODINGS or (ours.encoding, ours.biases) in (
        ("xl", "per-layer"),
        ("shaw", "shared"),
    ):
        raise SourceError(
            f"the authors' PyTorch code has no encoding {ours.encoding!r} with {ours.biases} biases; "
            "per-layer u and v are in Hugging Face's layout: try --layout huggingface"
        )
    return ENCODINGS.index(ours.encoding)


def _segment_length(ours: XLConfig, read: Reading) -> int:
    """Their `tgt_len`: position tables have tgt_len + mem_len rows, and absolute positions allow no memory."""
    rows = ours.max_positions or ours.max_distance
    if not rows:
        return read.segment
    if ours.encoding == "per-layer" and ours.heads * ours.head_width != ours.width:
        raise SourceError(
            "the authors' code has per-layer positions only where heads × head_width is the width"
        )
    memory = read.reach.memory
    if ours.encoding != "shaw" and memory:
        raise SourceError(
            f"the authors' code has no memory with absolute positions; this reading has memory {memory}"
        )
    if rows <= memory:
        raise SourceError(
            f"their position table needs more rows than the memory; it has {rows}, and memory is {memory}"
        )
    return rows - memory


def _check_sinusoids(table: Tensor, theirs: ReferenceConfig) -> None:
    if not torch.equal(table, _sinusoids_from_the_end(theirs, table.dtype)):
        raise SourceError(
            "the authors' code has only sinusoids at the input; the position table of this model was learned"
        )
