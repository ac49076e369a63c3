"""Blockwise attention: the numbers of `attention.py` from views and batched products, a block of queries at a time.

On a CPU with a compiler, `native_attention.py` does this instead. Here is what runs on other devices, and without one:

- Tensors are time-first, (T, B, H, D), so that lane and head share one stride: every product reads them in place.
- The relative shift is free: scores by distance, read with rows one shorter than they are, are scores by key.
- A block of queries sees the keys within its span or window; keys out of reach of the whole block are not computed.
- The backward pass is written by hand: it saves attention weights alone, and recomputes them if there are many.

Letters: B lanes, T queries, S keys, H heads, D head width; t queries of a block, W keys that they see, R rows of
relative keys, N = B H.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.nn import native_attention
from segue.nn.mask import AttentionMask
from segue.nn.positions import RelativeKeys
from segue.nn.scratch import scratch

QUERY_BLOCK = 128
"""Queries in a block: enough for large products, few enough that their scores stay in the CPU's cache."""

SAVED_WEIGHTS = 2**20
"""Attention weights of a layer that are saved for the backward pass at most; more of them are recomputed."""


class _Inputs(NamedTuple):
    """The inputs of attention. Queries are scaled and have their biases added: u for content, v for position."""

    query: Tensor  # (T, B, H, D)
    position_query: Tensor  # (T, B, H, D), or of width 0 like the rows
    keys_values: Tensor  # (2, S, B, H, D)
    rows: Tensor | None  # (H, R, D)
    row_bias: Tensor | None  # (H, R)
    mask: AttentionMask


@dataclass(frozen=True)
class QueryBlock:
    """A block of queries, begin … end, and the keys low … high that they see."""

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
        """(H, n, …) The rows of (H, R, …) for the distances that occur in the block."""
        if self.causal:
            return rows[:, max(0, rows.size(1) - (self.high - self.low)) :]
        nearest = rows.size(1) // 2  # the row of distance 0; rows before it look back, rows behind it ahead
        return rows[:, nearest + 1 - self.end + self.low : nearest - self.begin + self.high]


def attend(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> Tensor:
    """(T, B, H, D) Attention of queries (T, B, H, D) to keys and values (2, S, B, H, D)."""
    if native_attention.runs(query, keys_values, relative, mask):
        return native_attention.attend(query, keys_values, relative, mask, scale)[0]
    inputs = _inputs(query, keys_values, relative, mask, scale)
    if not torch.is_grad_enabled():
        return _gathered(inputs, None, None)
    gathered: Tensor = _Attend.apply(False, *inputs)[0]
    return gathered


def attend_part(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> tuple[Tensor, Tensor]:
    """The same for a part of the keys, with the log of the sum of their exponentiated scores (T, B, H).

    With these sums, several parts make one softmax: see `merged`. A query that sees no key of the part gathers
    anything, with the lowest number there is as its log.
    """
    if native_attention.runs(query, keys_values, relative, mask):
        return native_attention.attend(query, keys_values, relative, mask, scale)
    inputs = _inputs(query, keys_values, relative, mask, scale)
    if not torch.is_grad_enabled():
        logs = query.new_empty(query.shape[:3])
        return _gathered(inputs, None, logs), logs
    gathered, logs = _Attend.apply(True, *inputs)
    return gathered, logs


def merged(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """(T, B, H, D) One softmax over the keys of all parts, each with what it gathered and the log of its sum."""
    shares = torch.stack([logs for _, logs in parts]).softmax(dim=0)[..., None]
    total = shares[0] * parts[0][0]
    for share, (gathered, _) in zip(shares[1:], parts[1:], strict=True):
        total = total + share * gathered
    return total


def _inputs(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> _Inputs:
    if relative is None:
        query = query * scale
        return _Inputs(query, query, keys_values, None, None, mask)
    # Distances beyond the rows score zero: add as many zero rows as a block has queries, so that all can shift.
    known, few = relative.rows.size(0), min(QUERY_BLOCK, mask.size)
    missing = max(few - 1, 1 - known) if mask.causal and known < mask.keys else 0
    rows, row_bias = relative.rows, relative.row_bias
    if missing:  # padding by no rows would copy
        rows = F.pad(rows, (0, 0, 0, 0, missing, 0))
    if row_bias is not None:
        row_bias = F.pad(row_bias * scale, (0, 0, missing, 0)).T
    u, v = relative.content_bias, relative.position_bias
    query = torch.add(u * scale, query, alpha=scale)
    position_query = query + (v - u) * scale if rows.size(-1) else query[..., :0]
    return _Inputs(query, position_query, keys_values, rows.transpose(0, 1), row_bias, mask)


def _gathered(inputs: _Inputs, saved: list[Tensor] | None, logs: Tensor | None) -> Tensor:
    """The forward pass; attention weights are appended to `saved`, log-sums written to `logs` (T, B, H) if given."""
    query, value = inputs.query, inputs.keys_values[1]
    gathered = torch.empty_like(query)
    for block in query_blocks(inputs.mask):
        out = _scores_like("scores", inputs, block)
        scores = _scores(inputs, block, out if saved is None else torch.empty_like(out))
        if logs is not None:
            block.queries(logs).flatten(1).T.copy_(scores.amax(dim=-1))
        weights = torch.softmax(scores, dim=-1, out=scores)
        if logs is not None:  # the largest weight is exp(highest score - log of the sum)
            block.queries(logs).flatten(1).T.sub_(weights.amax(dim=-1).log_())
        _by_head(block.queries(gathered)).copy_(torch.bmm(weights, _by_head(block.keys(value))))
        if saved is not None:
            saved.append(weights)
    return gathered


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: bool, *inputs: Any) -> tuple[Tensor, Tensor | None]:
        asked = _Inputs(*inputs)
        lanes, heads = asked.query.shape[1:3]
        wide = sum((block.end - block.begin) * (block.high - block.low) for block in query_blocks(asked.mask))
        saved: list[Tensor] | None = [] if lanes * heads * wide <= SAVED_WEIGHTS else None
        logs = asked.query.new_empty(asked.query.shape[:3]) if part else None
        gathered = _gathered(asked, saved, logs)
        ctx.save_for_backward(*asked[:5], gathered, *(saved or ()))
        ctx.mask = asked.mask
        return gathered, logs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, to_logs: Tensor | None) -> Any:
        query, position_query, keys_values, rows, row_bias, gathered, *saved = ctx.saved_tensors
        inputs = _Inputs(query, position_query, keys_values, rows, row_bias, ctx.mask)
        (key, value), (lanes, heads) = keys_values, query.shape[1:3]
        gradient = gradient.contiguous()
        to_query, to_position = torch.empty_like(query), torch.empty_like(position_query)
        to_key, to_value = to_keys_values = query.new_empty(2, lanes * heads, len(key), query.size(-1))
        to_rows = None if rows is None else torch.zeros_like(rows, memory_format=torch.contiguous_format)
        to_bias = None if row_bias is None else rows.new_zeros(rows.shape[:2])
        # Softmax's backward pass subtracts sum_s p_s dp_s, which is gradient · output; the log-sum's adds its own.
        common = (gradient * gathered).sum(dim=-1)
        common = (common if to_logs is None else common - to_logs).flatten(1).T[..., None]
        newest_first = list(query_blocks(ctx.mask))[::-1]
        oldest = newest_first[0].low
        to_keys_values[:, :, :oldest] = (
            0  # the newest block writes the other keys first; older blocks add to them
        )
        for block in newest_first:
            if saved:
                weights = saved.pop()
            else:
                scores = _scores(inputs, block, _scores_like("weights", inputs, block))
                weights = torch.softmax(scores, dim=-1, out=scores)
            few, here = slice(block.begin, block.end), slice(block.low, block.high)
            arriving, so_far = _by_head(gradient[few]), float(block.end < len(query))
            to_value[:, here].baddbmm_(weights.transpose(1, 2), arriving, beta=so_far)
            place = scratch("scores", *weights.shape, like=weights)
            to_scores = torch.bmm(arriving, _by_head(value[here]).transpose(1, 2), out=place)
            to_scores.sub_(common[:, few]).mul_(weights)
            _by_head(to_query[few]).copy_(torch.bmm(to_scores, _by_head(key[here])))
            to_key[:, here].baddbmm_(to_scores.transpose(1, 2), _by_head(query[few]), beta=so_far)
            if to_rows is not None:
                near = block.distances(rows)
                by_distance = _unshifted(to_scores, lanes, near.size(1))
                _by_place(to_position[few]).copy_(torch.bmm(by_distance, near))
                asked = _by_place(position_query[few])
                block.distances(to_rows).baddbmm_(by_distance.transpose(1, 2), asked)
                if to_bias is not None:
                    block.distances(to_bias).add_(by_distance.sum(dim=1))
        by_lane = to_keys_values.unflatten(1, (lanes, heads)).permute(0, 3, 1, 2, 4).contiguous()
        return None, to_query, None if rows is None else to_position, by_lane, to_rows, to_bias, None


def query_blocks(mask: AttentionMask) -> Iterator[QueryBlock]:
    """All queries in blocks, each with the keys from the oldest in its span or window to the newest."""
    for begin in range(0, mask.size, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, mask.size)
        if mask.causal:
            low = 0 if mask.span is None else max(0, mask.held + begin + 1 - mask.span)
            yield QueryBlock(begin, end, low, mask.held + end, causal=True)
        elif mask.window is not None:
            aside = mask.window // 2
            yield QueryBlock(begin, end, max(0, begin - aside), min(mask.held, end + aside), causal=False)
        else:
            yield QueryBlock(begin, end, 0, mask.held, causal=False)


def _scores_like(use: str, inputs: _Inputs, block: QueryBlock) -> Tensor:
    """(N, t, W) A scratch tensor for the scores of a block."""
    lanes, heads = inputs.query.shape[1:3]
    shape = lanes * heads, block.end - block.begin, block.high - block.low
    return scratch(use, *shape, like=inputs.query)


def _by_head(tensor: Tensor) -> Tensor:
    """(N, T, D) of (T, B, H, D), in place."""
    return tensor.flatten(1, 2).transpose(0, 1)


def _by_place(tensor: Tensor) -> Tensor:
    """(H, T B, D) of (T, B, H, D), in place: relative keys are the same for all lanes, so one product serves them."""
    return tensor.flatten(0, 1).transpose(0, 1)


def _scores(inputs: _Inputs, block: QueryBlock, out: Tensor) -> Tensor:
    """(N, t, W) The masked scores of a block, written to `out`."""
    query, key, lanes = block.queries(inputs.query), block.keys(inputs.keys_values[0]), inputs.query.size(1)
    scores = torch.bmm(_by_head(query), _by_head(key).transpose(1, 2), out=out)
    if inputs.rows is not None:
        near, asking = block.distances(inputs.rows), _by_place(block.queries(inputs.position_query))
        place = scratch("distances", len(asking), asking.size(1), near.size(1), like=query)
        by_distance = torch.bmm(asking, near.transpose(1, 2), out=place)
        if inputs.row_bias is not None:
            by_distance += block.distances(inputs.row_bias)[:, None]
        keys = min(near.size(1), scores.size(-1))
        by_lane = scores.unflatten(0, (lanes, -1))
        by_lane[..., scores.size(-1) - keys :].add_(_shifted(by_distance, lanes, keys))
    _apply_mask(scores, lanes, inputs.mask, block)
    return scores


def _shifted(by_distance: Tensor, lanes: int, keys: int) -> Tensor:
    """(B, H, t, keys) Scores by distance (H, t B, n) re-indexed by key, as a view.

    The columns of a row are falling distances. The last query of the block finds its first key in column 0; for the
    query before it, the same key is one column later. Entries for keys ahead of a query are numbers of the next row:
    mask them.
    """
    heads, places, pitch = by_distance.shape
    few = places // lanes
    return by_distance.as_strided(
        (lanes, heads, few, keys),
        (pitch, places * pitch, lanes * pitch - 1, 1),
        by_distance.storage_offset() + few - 1,
    )


def _unshifted(to_scores: Tensor, lanes: int, distances: int) -> Tensor:
    """(H, t B, n) Gradients by key (N, t, W) re-indexed by distance. A spare column keeps rows of the view apart."""
    few = to_scores.size(1)
    keys = min(distances, to_scores.size(2))
    by_lane = to_scores.unflatten(0, (lanes, -1))[..., to_scores.size(2) - keys :]
    by_distance = scratch("distances", by_lane.size(1), few * lanes, distances + 1, like=to_scores).zero_()
    _shifted(by_distance, lanes, keys).copy_(by_lane)
    return by_distance[..., :-1]


def _apply_mask(scores: Tensor, lanes: int, mask: AttentionMask, block: QueryBlock) -> None:
    """Apply the mask: keys ahead of their query, out of its span or window, or of another document get no weight.

    Their score is the lowest number, not -inf: where all keys are masked, softmax would be NaN.
    """
    few, keys = scores.shape[1:]
    lowest = torch.finfo(scores.dtype).min
    if few > 1 - mask.nearest and mask.causal:
        ahead = torch.ones(few, few, dtype=torch.bool, device=scores.device).triu_(1 - mask.nearest)
        scores[..., keys - few :].masked_fill_(ahead, lowest)
    if mask.span is not None and mask.causal:
        # The first key in the span of query i, counted from the block's first key, is oldest + i.
        oldest = mask.held + block.begin + 1 - mask.span - block.low
        columns = max(0, oldest + few - 1)
        out = torch.ones(few, columns, dtype=torch.bool, device=scores.device).tril_(oldest - 1)
        scores[..., :columns].masked_fill_(out, lowest)
    asked, near = slice(block.begin, block.end), slice(block.low, block.high)
    if mask.window is not None:
        scores.masked_fill_(~mask.in_window(asked, near, scores.device), lowest)
    masked = mask.masked(asked, near, scores.device)
    if masked is not None:
        scores.unflatten(0, (lanes, -1)).masked_fill_(masked, lowest)
