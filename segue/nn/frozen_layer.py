"""A layer of a Transformer-XL for reading only: what `block.py` computes, without dropout, modules and gradients.

A single token leaves little to compute, so its step is written with the fewest operations.

Letters: B lanes, T tokens in the segment, M rows in memory, S keys, H heads, D head width, C width, R rows of relative
keys, N = B H.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.nn.attention import gather
from segue.nn.block import Block
from segue.nn.int8 import STEPS, Int8Linear
from segue.nn.kv_precision import packed, unpacked
from segue.nn.mask import AttentionMask
from segue.nn.positions import Relative, RelativeKeys, Rotation

WEIGHTS_FIRST = 8
"""From this many lanes on, `weights @ inputs` is faster on a CPU than `inputs @ weights`."""


class Linear(Protocol):
    """A linear layer: for a segment (T, B, C), and for a single token of each lane (B, C)."""

    def __call__(self, inputs: Tensor) -> Tensor: ...

    def step(self, inputs: Tensor) -> Tensor: ...


class FloatLinear(NamedTuple):
    """The weights of an nn.Linear."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight, self.bias)

    def step(self, inputs: Tensor) -> Tensor:
        if len(inputs) < WEIGHTS_FIRST or inputs.device.type != "cpu":
            return F.linear(inputs, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(self.weight, inputs.T).T.contiguous()
        return torch.addmm(self.bias[:, None], self.weight, inputs.T).T.contiguous()


class Norm(NamedTuple):
    """A LayerNorm's weights."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, hidden: Tensor) -> Tensor:
        return torch.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.epsilon)


class LanePart(NamedTuple):
    """Some lanes at a step: their keys and values (2, B, H, S, D), the newest to be written, and which are masked.

    With a pattern of sparse attention, only the keys in `looked_at` are, and `masked` is of those.
    """

    keys_values: Tensor
    masked: Tensor | None  # (B, 1, S); with `looked_at` (B, 1 or H, K)
    looked_at: Tensor | None = None  # (B, 1 or H, K)


class FrozenLayer:
    """One block's weights, in float32 or int8."""

    def __init__(self, block: Block, *, int8: bool) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        self.query = _linear(attention.query, int8)
        self.key_value = _linear(attention.key_value, int8)
        self.out = _linear(attention.out, int8)
        self.inner = _linear(feed_forward.inner, int8)
        self.outer = _linear(feed_forward.outer, int8, zero=0)  # nothing negative leaves the ReLU
        self.attention_norm, self.feed_forward_norm = (
            Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)
            for norm in (block.attention_norm, block.feed_forward_norm)
        )
        self.heads, self.scale, self.pre = attention.heads, attention.scale, block.pre
        self._kind = self.attention_norm.weight.dtype

    def keys_values(self, states: Tensor, turning: Rotation | None) -> Tensor:
        """(2, S, B, H, D) Keys and values of a layer's inputs (S, B, C)."""
        normed = self.attention_norm(states) if self.pre else states
        keys_values: Tensor = self.key_value(normed).unflatten(-1, (2, self.heads, -1)).movedim(2, 0)
        if turning is not None:
            keys_values = torch.stack([turning.turned(keys_values[0]), keys_values[1]])
        return keys_values

    def read(self, hidden: Tensor, slots: Tensor, relative: Relative | None, mask: AttentionMask) -> Tensor:
        """The layer's output for a segment (T, B, C). Its keys and values go to the last T rows of the slots."""
        turning = relative if isinstance(relative, Rotation) else None
        slots[:, slots.size(1) - len(hidden) :] = packed(self.keys_values(hidden, turning), slots.dtype)
        normed = self.attention_norm(hidden) if self.pre else hidden
        query = self.query(normed).unflatten(-1, (self.heads, -1))
        if isinstance(relative, Rotation):  # the keys in the slots are turned already
            query, relative = relative.turned(query), None
        keys_values = unpacked(slots, self._kind)
        hidden = hidden + self.out(gather(query, keys_values, relative, mask, self.scale).flatten(2))
        if not self.pre:
            hidden = self.attention_norm(hidden)
        rows = (self.feed_forward_norm(hidden) if self.pre else hidden).flatten(0, 1)
        hidden = hidden + self.outer(self.inner(rows).relu_()).view(hidden.shape)
        return hidden if self.pre else self.feed_forward_norm(hidden)

    def step(self, hidden: Tensor, relative: Relative | None, parts: Sequence[LanePart]) -> Tensor:
        """The layer's output for one token of each lane (B, C), whose lanes lie in several buffers."""
        normed = self.attention_norm(hidden) if self.pre else hidden
        lanes = len(hidden)
        query = self.query.step(normed).view(lanes, self.heads, -1)
        fresh = self.key_value.step(normed).view(lanes, 2, self.heads, -1).transpose(0, 1)
        if isinstance(relative, Rotation):
            query, fresh = relative.turned(query), torch.stack([relative.turned(fresh[0]), fresh[1]])
            relative = None
        gathered = self._attended(query, fresh, relative, parts)
        hidden = hidden + self.out.step(gathered)
        if not self.pre:
            hidden = self.attention_norm(hidden)
        fed = self.inner.step(self.feed_forward_norm(hidden) if self.pre else hidden).relu_()
        hidden = hidden + self.outer.step(fed)
        return hidden if self.pre else self.feed_forward_norm(hidden)

    def remember(self, hidden: Tensor, parts: Sequence[LanePart]) -> None:
        """Write the newest keys and values of one token of each lane (B, C), and read nothing."""
        fresh = self.keys_values(hidden[None], None)[:, 0]
        for part, some in zip(
            parts, fresh.split([part.keys_values.size(1) for part in parts], dim=1), strict=True
        ):
            self._written(part, some)

    def _written(self, part: LanePart, fresh: Tensor) -> Tensor:
        """(2, B, H, S, D) The part's keys and values, after the newest (2, B, H, D) were written."""
        part.keys_values[..., -1, :].copy_(packed(fresh, part.keys_values.dtype))
        return unpacked(part.keys_values, self._kind)

    def _attended(
        self, query: Tensor, fresh: Tensor, relative: RelativeKeys | None, parts: Sequence[LanePart]
    ) -> Tensor:
        """(B, H D) What each lane's query (B, H, D) gathers; `fresh` (2, B, H, D) are the newest keys and values."""
        if parts[0].looked_at is not None:
            counts = [part.keys_values.size(1) for part in parts]
            by_part = zip(parts, query.split(counts), fresh.split(counts, dim=1), strict=True)
            return torch.cat([self._sparse_attended(part, ask, new, relative) for part, ask, new in by_part])
        by_distance = None
        content = query
        if relative is not None:
            longest = max(part.keys_values.size(3) for part in parts)
            by_distance, content = _by_distance(query, relative, longest), query + relative.content_bias
        if len(parts) == 1:
            return self._part_attended(content, fresh, by_distance, parts[0])
        gathered, first = [], 0
        for part in parts:
            last = first + part.keys_values.size(1)
            near = None if by_distance is None else by_distance[:, first:last]
            gathered.append(self._part_attended(content[first:last], fresh[:, first:last], near, part))
            first = last
        return torch.cat(gathered)

    def _part_attended(
        self, query: Tensor, fresh: Tensor, by_distance: Tensor | None, part: LanePart
    ) -> Tensor:
        keys, values = self._written(part, fresh).flatten(1, 2)
        scores = self._scores(query, keys, by_distance)
        if part.masked is not None:
            scores.view(len(query), self.heads, -1).masked_fill_(part.masked, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(weights, values).view(len(query), -1)

    def _sparse_attended(
        self, part: LanePart, query: Tensor, fresh: Tensor, relative: RelativeKeys | None
    ) -> Tensor:
        """(B, H D) What queries (B, H, D) gather from the keys that are looked at."""
        assert part.looked_at is not None
        lanes, heads, width = query.shape
        index = part.looked_at.expand(lanes, heads, -1)
        keys, values = self._written(part, fresh).gather(
            3, index[None, ..., None].expand(2, -1, -1, -1, width)
        )
        content = query if relative is None else query + relative.content_bias
        scores = torch.matmul(keys, content[..., None]).squeeze(-1)
        if relative is not None and len(relative.rows):
            distance = part.keys_values.size(3) - 1 - part.looked_at
            scores = scores + _at_distances(query, relative, distance)
        scores = scores.mul_(self.scale)
        if part.masked is not None:
            scores.masked_fill_(part.masked, float("-inf"))
        return torch.matmul(scores.softmax(dim=-1)[:, :, None], values).view(lanes, -1)

    def _scores(self, query: Tensor, keys: Tensor, by_distance: Tensor | None) -> Tensor:
        """(N, 1, S) For a single query, distances and keys stand in the same order: there is nothing to shift."""
        (lanes, heads, width), count = query.shape, keys.size(1)
        query, keys = query.reshape(lanes * heads, 1, width), keys.transpose(1, 2)
        if by_distance is None:
            return torch.bmm(query, keys).mul_(self.scale)
        rows = min(count, by_distance.size(2))
        near = by_distance[..., by_distance.size(2) - rows :]
        if lanes == 1 and rows == count:
            positions = near.transpose(0, 1).reshape(heads, 1, count)
            return torch.baddbmm(positions, query, keys, beta=self.scale, alpha=self.scale)
        scores = torch.bmm(query, keys).view(lanes, heads, count)
        scores[..., count - rows :] += near.transpose(0, 1)
        return scores.mul_(self.scale).view(lanes * heads, 1, count)


def _by_distance(query: Tensor, relative: RelativeKeys, keys: int) -> Tensor:
    """(H, B, R) The position terms (b) and (d) of the newest distances, for all lanes in one product."""
    rows = relative.rows.transpose(0, 1)[:, -keys:]
    asking = (query + relative.position_bias)[..., : rows.size(-1)]
    by_distance = torch.bmm(asking.transpose(0, 1), rows.transpose(1, 2))
    if relative.row_bias is not None:
        by_distance = by_distance + relative.row_bias.T[:, None, -keys:]
    return by_distance


def _at_distances(query: Tensor, relative: RelativeKeys, distance: Tensor) -> Tensor:
    """(B, H, K) The position terms (b) and (d) for some distances (B, 1 or H, K)."""
    known, heads = len(relative.rows), torch.arange(query.size(1), device=query.device)[:, None]
    row = (known - 1 - distance).clamp(min=0)
    asking = (query + relative.position_bias)[..., : relative.rows.size(-1)]
    scores = torch.matmul(relative.rows[row, heads], asking[..., None]).squeeze(-1)
    if relative.row_bias is not None:
        scores = scores + relative.row_bias[row, heads]
    return scores.masked_fill(distance >= known, 0)


def _linear(layer: nn.Linear, int8: bool, *, zero: int = STEPS) -> Linear:
    if int8:
        return Int8Linear(layer, zero=zero)
    return FloatLinear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
