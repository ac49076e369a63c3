"""Sparse attention that skips what its pattern masks: near and far keys apart, then one softmax over both.

- strided, near: a span of l keys. Far: rows of one residue class mod l are one sequence of S / l rows; since time comes
  first, taking the classes for lanes is a view, and their distances are every l-th row of the relative keys.
- fixed, near: a span of l keys, within blocks. Far: the c summary rows of all earlier blocks (`summaries.py`).

The two sets are disjoint here, so every key counts once. So n (l + n / l) or n (l + c n / l) scores are computed.
Letters: B lanes, T queries, S keys, H heads, D head width, l stride, c summaries, G blocks of l rows.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.nn.blockwise import attend, attend_part, merged, query_blocks
from segue.nn.layout import HOST
from segue.nn.mask import AttentionMask
from segue.nn.patterns import Pattern
from segue.nn.positions import RelativeKeys
from segue.nn.summaries import attend_summaries

MOST_SLOTS = 4
"""Slots of the grid for each key at most."""


def attend_sparse(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> Tensor:
    """(T, B, H, D) What queries (T, B, H, D) gather from the keys and values (2, S, B, H, D) of their pattern.

    A segment is computed as a whole and masked where that makes fewer scores, or where most slots of the grid would be
    empty: many short documents, or blocks longer than all there is.
    """
    pattern = mask.pattern
    assert pattern is not None
    if pattern.sees == "by-head":
        halves = zip(pattern.halves, _by_halves(query, keys_values, relative, pattern), strict=True)
        parts = [attend_sparse(*given, replace(mask, pattern=half), scale) for half, given in halves]
        return torch.cat(parts, dim=2)
    grid = mask.grid
    slots = 0 if grid is None or pattern.sees == "near" else grid.query_blocks * pattern.stride
    if part_scores(mask) > whole_scores(mask) or slots > MOST_SLOTS * mask.keys:
        return attend(query, keys_values, relative, mask, scale)
    return attend_in_parts(query, keys_values, relative, mask, scale)


def attend_in_parts(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> Tensor:
    """The same for heads of one pattern, never computed as a whole."""
    pattern = mask.pattern
    assert pattern is not None
    if pattern.kind == "strided":
        if pattern.sees == "far":
            return attend_classes(query, keys_values, relative, mask, scale)[0]
        near = attend_part(query, keys_values, relative, near_mask(mask), scale)
        if pattern.sees == "near":
            return near[0]
        return merged([near, attend_classes(query, keys_values, relative, mask, scale)])
    near = attend_part(query, keys_values, relative, near_mask(mask), scale)
    if pattern.sees == "near":
        return near[0]
    return merged([near, attend_summaries(query, keys_values, relative, mask, scale)])


def whole_scores(mask: AttentionMask) -> int:
    """How many scores `attend` computes for each lane and head."""
    return sum((block.end - block.begin) * (block.high - block.low) for block in query_blocks(mask))


def part_scores(mask: AttentionMask) -> int:
    """How many scores `attend_in_parts` computes for each lane and head."""
    pattern, grid = mask.pattern, mask.grid
    assert pattern is not None
    with_near = pattern.kind == "fixed" or pattern.sees != "far"
    near = whole_scores(near_mask(mask)) if with_near else 0
    if pattern.sees == "near":
        return near
    if grid is None:
        return near + -(-mask.keys // pattern.stride) * -(-mask.size // pattern.stride) * pattern.stride
    blocks, asking = grid.blocks, grid.query_blocks
    earlier = asking * (blocks - asking) + asking * (asking - 1) // 2
    return near + earlier * pattern.stride * pattern.summary


def near_mask(mask: AttentionMask) -> AttentionMask:
    """The mask of what lies within l keys, and in the same block if the pattern is fixed."""
    pattern = mask.pattern
    assert pattern is not None
    near = replace(mask, span=min(pattern.stride, mask.span or pattern.stride), pattern=None)
    if mask.grid is None:
        return near
    # Heads that see far keys alone still see their own block's summaries.
    return replace(near, documents=mask.grid.labels, pattern=pattern if pattern.sees == "far" else None)


def attend_classes(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> tuple[Tensor, Tensor]:
    """The far part of the strided pattern: attention within each residue class. The log-sums come with it.

    The query itself is left out where it is among the near keys.
    """
    pattern = mask.pattern
    assert pattern is not None
    stride, lanes = pattern.stride, query.size(1)
    blocks, asking = -(-mask.keys // stride), -(-mask.size // stride)
    unfilled, before = blocks * stride - mask.keys, asking * stride - mask.size
    keys_values = _by_class(F.pad(keys_values, (0, 0, 0, 0, 0, 0, unfilled, 0)), stride)
    query = _by_class(F.pad(query, (0, 0, 0, 0, 0, 0, before, 0))[None], stride)[0]
    documents = mask.documents
    if documents is None and unfilled:
        documents = torch.zeros(lanes, mask.keys, dtype=torch.int64, device=query.device)
    if documents is not None:
        padded = F.pad(documents, (unfilled, 0), value=-1)
        documents = padded.unflatten(1, (blocks, stride)).permute(2, 0, 1).flatten(0, 1)
    of_class = AttentionMask(
        held=blocks - asking,
        size=asking,
        span=None if mask.span is None else (mask.span - 1) // stride + 1,
        documents=documents,
        nearest=0 if pattern.sees == "far" else 1,
    )
    gathered, logs = attend_part(query, keys_values, _every(relative, stride), of_class, scale)
    in_order = (part.view(asking * stride, lanes, *part.shape[2:]) for part in (gathered, logs))
    gathered, logs = (part[before:] for part in in_order)
    return gathered, logs


def _by_class(rows: Tensor, stride: int) -> Tensor:
    """(…, G, l B, H, D) Rows (…, G l, B, H, D) with each residue class as a lane: a view."""
    by_class: Tensor = rows.unflatten(1, (-1, stride)).flatten(2, 3)
    return by_class


def _every(relative: RelativeKeys | None, stride: int) -> RelativeKeys | None:
    """The relative keys for every l-th distance, from distance 0 on."""
    if relative is None:
        return None
    chosen = slice((len(relative.rows) - 1) % stride, None, stride)
    bias = None if relative.row_bias is None else relative.row_bias[chosen]
    return replace(relative, rows=relative.rows[chosen], row_bias=bias)


Given = tuple[Tensor, Tensor, RelativeKeys | None]


def _by_halves(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, pattern: Pattern
) -> list[Given]:
    """What attention is given, apart for the near heads and for the far heads."""
    near = pattern.halves[0].heads
    return [
        (
            query[:, :, heads],
            keys_values[:, :, :, heads],
            None if relative is None else _of_heads(relative, heads),
        )
        for heads in (slice(0, near), slice(near, None))
    ]


def _of_heads(relative: RelativeKeys, heads: slice) -> RelativeKeys:
    return RelativeKeys(
        relative.rows[:, heads],
        relative.content_bias[heads],
        relative.position_bias[heads],
        None if relative.row_bias is None else relative.row_bias[:, heads],
    )


def keys_of_one(pattern: Pattern, keys: int, held: Tensor, place: Tensor) -> tuple[Tensor, Tensor | None]:
    """(B, 1 or H, K) The keys, of the newest S, that a single query sees, and which of the index is to be masked.

    `held` (B,) counts the rows of memory that are the lane's own, `place` (B,) is the query's place in its document.
    """
    distance = torch.arange(keys - 1, -1, -1, device=HOST)
    visible = pattern.visible(distance[None], place[:, None], place[:, None] - distance)
    visible = (visible & (distance <= held[:, None, None, None])).squeeze(2)
    counts = visible.sum(dim=-1, keepdim=True)
    most = int(counts.max())
    slots = torch.where(
        visible, visible.cumsum(dim=-1) - 1, most
    )  # what is not seen goes behind the last slot
    index = slots.new_zeros(*slots.shape[:2], most + 1)
    index.scatter_(2, slots, torch.arange(keys, device=HOST).expand_as(slots))
    masked = torch.arange(most, device=HOST) >= counts
    return index[..., :most], masked if bool(masked.any()) else None
