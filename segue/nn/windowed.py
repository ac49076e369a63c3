"""The attention of `attention.py`, fast: the same numbers from views and batched products, a few queries at a time.

- Tensors are time-first, (T, B, H, D), so that lane and head share one stride: every product reads them in place.
- The shift costs nothing: scores by distance, read with a row one shorter than it is, are scores by key.
- A few queries see a window of keys, no wider than their span allows; what lies ahead of all of them is not computed.
- The backward pass is written out, so that nothing is kept but the weights themselves.

Letters: B lanes, T queries, S keys, H heads, D head width; t queries at a time, W keys in their window, R rows of a
relation, N = B H.
"""

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.nn.passage import Sight
from segue.nn.positions import Relation

FEW = 128
"""Queries at a time: enough for large products, few enough that their scores stay in the cache."""

KEPT = threading.local()
"""Room for scores on CPUs, one for each thread and use: fresh memory costs more than the product that fills it."""


class _Given(NamedTuple):
    """What attention works on. Queries come scaled and with their biases, u for content and v for position."""

    query: Tensor  # (T, B, H, D)
    position_query: Tensor  # (T, B, H, D)
    keys_values: Tensor  # (2, S, B, H, D)
    rows: Tensor | None  # (H, R, D)
    row_bias: Tensor | None  # (H, R)
    sight: Sight


@dataclass(frozen=True)
class Window:
    """Queries begin … end, and the keys low … high that they see."""

    begin: int
    end: int
    low: int
    high: int
    causal: bool

    def queries(self, tensor: Tensor) -> Tensor:
        return tensor[self.begin : self.end]

    def keys(self, tensor: Tensor) -> Tensor:
        return tensor[self.low : self.high]

    def distances(self, rows: Tensor) -> Tensor:
        """(H, n, …) The rows of (H, R, …) for the distances that occur: of keys behind, or on both sides."""
        if self.causal:
            return rows[:, max(0, rows.size(1) - (self.high - self.low)) :]
        return rows[:, self.high - self.end : 2 * self.high - 1 - self.begin]


def attend(
    query: Tensor, keys_values: Tensor, relation: Relation | None, sight: Sight, scale: float
) -> Tensor:
    """(T, B, H, D) What each query (T, B, H, D) gathers from keys and values (2, S, B, H, D)."""
    given = _given(query, keys_values, relation, sight, scale)
    if not torch.is_grad_enabled():
        return _gathered(given, None)
    gathered: Tensor = _Attend.apply(*given)
    return gathered


def _given(
    query: Tensor, keys_values: Tensor, relation: Relation | None, sight: Sight, scale: float
) -> _Given:
    if relation is None:
        query = query * scale
        return _Given(query, query, keys_values, None, None, sight)
    # Beyond the rows distances score zero: as many zero rows as queries in a window, so that all can shift.
    known, few = relation.rows.size(0), min(FEW, sight.size)
    missing = max(few - 1, 1 - known) if sight.causal and known < sight.keys else 0
    rows, row_bias = relation.rows, relation.row_bias
    if missing:  # padding by nothing would copy
        rows = F.pad(rows, (0, 0, 0, 0, missing, 0))
    if row_bias is not None:
        row_bias = F.pad(row_bias * scale, (0, 0, missing, 0)).T
    u, v = relation.content_bias, relation.position_bias
    query = torch.add(u * scale, query, alpha=scale)
    return _Given(query, query + (v - u) * scale, keys_values, rows.transpose(0, 1), row_bias, sight)


def _gathered(given: _Given, kept: list[Tensor] | None) -> Tensor:
    """The forward pass; the weights go to `kept` if there is such a list."""
    query, value = given.query, given.keys_values[1]
    gathered = torch.empty_like(query)
    for window in windows(given.sight):
        shape = query.size(1) * query.size(2), window.end - window.begin, window.high - window.low
        room = _room("scores", *shape, like=query) if kept is None else query.new_empty(shape)
        weights = _weights(given, window, room)
        _by_head(window.queries(gathered)).copy_(torch.bmm(weights, _by_head(window.keys(value))))
        if kept is not None:
            kept.append(weights)
    return gathered


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        asked, kept = _Given(*given), list[Tensor]()
        gathered = _gathered(asked, kept)
        ctx.save_for_backward(*asked[:4], gathered, *kept)
        ctx.sight, ctx.biased = asked.sight, asked.row_bias is not None
        return gathered

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, position_query, keys_values, rows, gathered, *kept = ctx.saved_tensors
        (key, value), (lanes, heads) = keys_values, query.shape[1:3]
        gradient = gradient.contiguous()
        to_query, to_position = torch.empty_like(query), torch.empty_like(query)
        to_key, to_value = to_keys_values = query.new_empty(2, lanes * heads, len(key), query.size(-1))
        to_rows = None if rows is None else torch.zeros_like(rows, memory_format=torch.contiguous_format)
        to_bias = rows.new_zeros(rows.shape[:2]) if ctx.biased else None
        # What softmax subtracts in its backward pass, sum_s p_s dp_s, is the gradient along what was gathered.
        common = (gradient * gathered).sum(dim=-1).flatten(1).T[..., None]
        newest_first = list(zip(windows(ctx.sight), kept, strict=True))[::-1]
        oldest = newest_first[0][0].low
        to_keys_values[:, :, :oldest] = 0  # the newest window writes the others, before anything is added
        for window, weights in newest_first:
            few, here = slice(window.begin, window.end), slice(window.low, window.high)
            arriving, so_far = _by_head(gradient[few]), float(window.end < len(query))
            to_value[:, here].baddbmm_(weights.transpose(1, 2), arriving, beta=so_far)
            place = _room("scores", *weights.shape, like=weights)
            slope = torch.bmm(arriving, _by_head(value[here]).transpose(1, 2), out=place)
            slope.sub_(common[:, few]).mul_(weights)
            _by_head(to_query[few]).copy_(torch.bmm(slope, _by_head(key[here])))
            to_key[:, here].baddbmm_(slope.transpose(1, 2), _by_head(query[few]), beta=so_far)
            if to_rows is not None:
                near = window.distances(rows)
                by_distance = _unshifted(slope, lanes, near.size(1))
                _by_place(to_position[few]).copy_(torch.bmm(by_distance, near))
                asked = _by_place(position_query[few])
                window.distances(to_rows).baddbmm_(by_distance.transpose(1, 2), asked)
                if to_bias is not None:
                    window.distances(to_bias).add_(by_distance.sum(dim=1))
        by_lane = to_keys_values.unflatten(1, (lanes, heads)).permute(0, 3, 1, 2, 4).contiguous()
        return to_query, None if rows is None else to_position, by_lane, to_rows, to_bias, None


def _room(use: str, *shape: int, like: Tensor) -> Tensor:
    """Unwritten, and written over at the next call: for what does not outlive this one."""
    if like.device.type != "cpu":  # the allocators of GPUs keep theirs
        return like.new_empty(shape)
    rooms: dict[tuple[str, torch.dtype], Tensor] = KEPT.__dict__.setdefault("rooms", {})
    size, key = math.prod(shape), (use, like.dtype)
    if key not in rooms or rooms[key].numel() < size:
        rooms[key] = torch.empty(size, dtype=like.dtype)
    return rooms[key][:size].view(shape)


def windows(sight: Sight) -> Iterator[Window]:
    """All queries, a few at a time, each few with the keys from the oldest in their span to their newest."""
    for begin in range(0, sight.size, FEW):
        end = min(begin + FEW, sight.size)
        if sight.causal:
            low = 0 if sight.span is None else max(0, sight.held + begin + 1 - sight.span)
            yield Window(begin, end, low, sight.held + end, causal=True)
        else:
            yield Window(begin, end, 0, sight.held, causal=False)


def _by_head(tensor: Tensor) -> Tensor:
    """(N, T, D) of (T, B, H, D), in place."""
    return tensor.flatten(1, 2).transpose(0, 1)


def _by_place(tensor: Tensor) -> Tensor:
    """(H, T B, D) of (T, B, H, D), in place: what all lanes share is multiplied once."""
    return tensor.flatten(0, 1).transpose(0, 1)


def _weights(given: _Given, window: Window, room: Tensor) -> Tensor:
    """(N, t, W) How much of each key goes to each query, written into the room."""
    query, key, lanes = window.queries(given.query), window.keys(given.keys_values[0]), given.query.size(1)
    scores = torch.bmm(_by_head(query), _by_head(key).transpose(1, 2), out=room)
    if given.rows is not None:
        near, asking = window.distances(given.rows), _by_place(window.queries(given.position_query))
        place = _room("distances", len(asking), asking.size(1), near.size(1), like=query)
        by_distance = torch.bmm(asking, near.transpose(1, 2), out=place)
        if given.row_bias is not None:
            by_distance += window.distances(given.row_bias)[:, None]
        keys = min(near.size(1), scores.size(-1))
        by_lane = scores.unflatten(0, (lanes, -1))
        by_lane[..., scores.size(-1) - keys :].add_(_shifted(by_distance, lanes, keys))
    _hide(scores, lanes, given.sight, window)
    return torch.softmax(scores, dim=-1, out=scores)


def _shifted(by_distance: Tensor, lanes: int, keys: int) -> Tensor:
    """(B, H, t, keys) Scores by distance (H, t B, n) re-indexed by key, as a view.

    A row's columns are falling distances. The last query of the window finds its keys in its row from the first
    column on; a query one before sees the same key one column later. Where keys lie ahead of a query and their
    distances are not there, it shows the next row's numbers: mask them.
    """
    heads, places, pitch = by_distance.shape
    few = places // lanes
    return by_distance.as_strided(
        (lanes, heads, few, keys),
        (pitch, places * pitch, lanes * pitch - 1, 1),
        by_distance.storage_offset() + few - 1,
    )


def _unshifted(slope: Tensor, lanes: int, distances: int) -> Tensor:
    """(H, t B, n) Slopes by key (N, t, W) re-indexed by distance. A spare column keeps the rows of the view apart."""
    few = slope.size(1)
    keys = min(distances, slope.size(2))
    by_lane = slope.unflatten(0, (lanes, -1))[..., slope.size(2) - keys :]
    by_distance = _room("distances", by_lane.size(1), few * lanes, distances + 1, like=slope).zero_()
    _shifted(by_distance, lanes, keys).copy_(by_lane)
    return by_distance[..., :-1]


def _hide(scores: Tensor, lanes: int, sight: Sight, window: Window) -> None:
    """Keys ahead of their query, out of its span, or of another document get no weight."""
    few, keys = scores.shape[1:]
    nothing = float("-inf")
    if few > 1 and sight.causal:
        ahead = torch.ones(few, few, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., keys - few :].masked_fill_(ahead, nothing)
    if sight.span is not None and sight.causal:
        # The first key in the span of query i, counted from the window's low end, is oldest + i.
        oldest = sight.held + window.begin + 1 - sight.span - window.low
        columns = max(0, oldest + few - 1)
        out = torch.ones(few, columns, dtype=torch.bool, device=scores.device).tril_(oldest - 1)
        scores[..., :columns].masked_fill_(out, nothing)
    unseen = sight.unseen(slice(window.begin, window.end), slice(window.low, window.high))
    if unseen is not None:
        scores.unflatten(0, (lanes, -1)).masked_fill_(unseen, nothing)
