"""The far part of the fixed pattern: every query attends to the c summary rows of each earlier block.

On the grid (`patterns.BlockGrid`) all lanes have their block edges in the same rows, so the distance of a query and a
summary depends on their blocks and columns alone. A block's queries are taken in sub-blocks of c columns; to the
summaries of one block, a sub-block has fewer than 2 c distances that follow each other: a window of relative keys.

Letters: B lanes, T queries, S keys, H heads, D head width, N = B H; l stride, c summaries, u = l / c sub-blocks;
G blocks, of which the last g hold queries.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.nn.mask import AttentionMask
from segue.nn.patterns import BlockGrid, Pattern
from segue.nn.positions import RelativeKeys
from segue.nn.scratch import scratch
from segue.nn.taken import Taken


def attend_summaries(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> tuple[Tensor, Tensor]:
    """(T, B, H, D) What queries (T, B, H, D) gather from summaries, and the logs of their sums (T, B, H)."""
    pattern, grid = mask.pattern, mask.grid
    assert pattern is not None
    assert grid is not None
    summary = grid.summary(pattern)
    heads = torch.arange(pattern.heads, device=query.device)
    lanes = torch.arange(query.size(1), device=query.device)[:, None]
    key, value = (
        Taken.apply(rows, (summary.rows, lanes, heads), (summary.places, lanes, heads))
        for rows in keys_values
    )
    to_grid, back = (grid.query_rows, lanes.T), (grid.query_slots, lanes.T)
    position_query, windows = None, None
    if relative is not None:
        windows = _windows(relative, pattern, grid.blocks)
        asking = (query + relative.position_bias)[..., : relative.rows.size(-1)] * scale
        if relative.row_bias is not None:  # a bias is a product with 1
            asking = torch.cat([asking, asking.new_full((*asking.shape[:3], 1), scale)], dim=-1)
        position_query = Taken.apply(asking, to_grid, back)
        query = query + relative.content_bias
    query = Taken.apply(query * scale, to_grid, back)
    gathered, logs = _Summaries.apply(query, position_query, key, value, windows, mask)
    return Taken.apply(gathered, back, to_grid), Taken.apply(logs, back, to_grid)


def _windows(relative: RelativeKeys, pattern: Pattern, blocks: int) -> Tensor:
    """(u H, (G - 1) 2 c, D) Relative keys of each sub-block of queries and head, for blocks G - 1 … 1 back.

    A window begins with the distance of the sub-block's last query to the block's first summary. Units of c distances
    follow each other, farthest first; a window is two of them.
    """
    c, stride = pattern.summary, pattern.stride
    rows = relative.rows
    if relative.row_bias is not None:
        rows = torch.cat([rows, relative.row_bias[..., None]], dim=-1)
    known, units = (
        len(rows),
        blocks * (stride // c),
    )  # unit k, counted from the end, has distances k c … k c + c - 1
    size = units * c
    rows = rows[max(0, known - size) :]
    units_far_first = F.pad(rows, (0, 0, 0, 0, max(0, size - known), 0)).unflatten(0, (units, c))
    device = rows.device
    back = torch.arange(blocks - 1, 0, -1, device=device) * (stride // c)
    own = torch.tensor(pattern.columns).to(device, non_blocking=True)[:, None] // c
    asking = torch.arange(stride // c, device=device)[:, None, None]
    unit = back + asking - own  # (u, H, G - 1)
    first, heads = units - 1 - unit, torch.arange(pattern.heads, device=device)[:, None]
    by_head = units_far_first.permute(2, 0, 1, 3)  # (H, units, c, D)
    windows = torch.cat([by_head[heads, first], by_head[heads, first + 1]], dim=-2)
    return windows.flatten(2, 3).flatten(0, 1)


class _Block(NamedTuple):
    """A block of queries on the grid, the summaries before it, and what of them is masked."""

    queries: slice
    earlier: int  # blocks
    masked: Tensor | None  # (B or 1, H or 1, l or 1, K)


def _blocks(mask: AttentionMask) -> Iterator[_Block]:
    """The blocks of queries that have earlier blocks."""
    pattern, grid = mask.pattern, mask.grid
    assert pattern is not None
    assert grid is not None
    empty, documents = grid.summary(pattern).empty, grid.block_documents
    for number in range(grid.query_blocks):
        block = grid.blocks - grid.query_blocks + number
        if not block:
            continue
        masked = None if empty is None else empty[:, :, None, : block * pattern.summary]
        if documents is not None:
            others = (documents[:, :block] != documents[:, block, None]).repeat_interleave(pattern.summary, 1)
            masked = others[:, None, None] if masked is None else masked | others[:, None, None]
        if mask.span is not None:
            beyond = _distances(pattern, grid, block) >= mask.span
            masked = beyond if masked is None else masked | beyond
        yield _Block(slice(number * pattern.stride, (number + 1) * pattern.stride), block, masked)


def _distances(pattern: Pattern, grid: BlockGrid, block: int) -> Tensor:
    """(1, H, l, K) From the queries of a block to the summaries of earlier ones."""
    device = grid.device
    columns = torch.tensor(pattern.columns).to(device, non_blocking=True)[:, None] + torch.arange(
        pattern.summary, device=device
    )
    earlier = torch.arange(block, device=device)[:, None] * pattern.stride
    keys = (columns[:, None] + earlier).flatten(1)  # (H, K)
    queries = block * pattern.stride + torch.arange(pattern.stride, device=device)
    return (queries[:, None] - keys[:, None])[None]


class _Summaries(torch.autograd.Function):
    """Attention on the grid, with the backward pass written by hand: it recomputes the weights of each block."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        position_query: Tensor | None,
        key: Tensor,
        value: Tensor,
        windows: Tensor | None,
        mask: AttentionMask,
    ) -> tuple[Tensor, Tensor]:
        gathered = torch.zeros_like(query)
        logs = query.new_full(query.shape[:3], torch.finfo(query.dtype).min)
        for block in _blocks(mask):
            scores = _scores(query, position_query, key, windows, block, mask)
            highest = scores.amax(dim=-1)
            weights = torch.softmax(scores, dim=-1, out=scores)
            logs[block.queries].flatten(1).T.copy_(highest - weights.amax(dim=-1).log_())
            gathered[block.queries].flatten(1, 2).transpose(0, 1).copy_(
                torch.bmm(weights, _by_head(value[: weights.size(-1)]))
            )
        ctx.save_for_backward(query, position_query, key, value, windows, gathered)
        ctx.mask = mask
        return gathered, logs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, to_logs: Tensor) -> Any:
        query, position_query, key, value, windows, gathered = ctx.saved_tensors
        gradient, mask = gradient.contiguous(), ctx.mask
        common = ((gradient * gathered).sum(dim=-1) - to_logs).flatten(1).T[..., None]
        to_query = torch.zeros_like(query)
        to_key, to_value = query.new_zeros(2, query.size(1) * query.size(2), len(key), query.size(-1))
        positions = windows is not None
        to_position = torch.zeros_like(position_query) if positions else None
        to_windows = torch.zeros_like(windows) if positions else None
        for block in _blocks(mask):
            scores = _scores(query, position_query, key, windows, block, mask)
            weights = torch.softmax(scores, dim=-1, out=scores)
            arriving, here = _by_head(gradient[block.queries]), slice(0, weights.size(-1))
            to_value[:, here].baddbmm_(weights.transpose(1, 2), arriving)
            place = scratch("to summaries", *weights.shape, like=weights)
            to_scores = torch.bmm(arriving, _by_head(value[here]).transpose(1, 2), out=place)
            to_scores.sub_(common[:, block.queries]).mul_(weights)
            _by_head(to_query[block.queries]).copy_(torch.bmm(to_scores, _by_head(key[here])))
            to_key[:, here].baddbmm_(to_scores.transpose(1, 2), _by_head(query[block.queries]))
            if to_position is not None and to_windows is not None:
                _positions_back(to_scores, block, mask, (position_query, windows), (to_position, to_windows))
        shape = key.size(1), key.size(2), len(key), key.size(3)
        by_row = (part.view(shape).permute(2, 0, 1, 3) for part in (to_key, to_value))
        return to_query, to_position, *by_row, to_windows, None


def _by_head(rows: Tensor) -> Tensor:
    """(N, T, D) of (T, B, H, D), in place."""
    return rows.flatten(1, 2).transpose(0, 1)


def _scores(
    query: Tensor,
    position_query: Tensor | None,
    key: Tensor,
    windows: Tensor | None,
    block: _Block,
    mask: AttentionMask,
) -> Tensor:
    """(N, l, K) The masked scores of a block, in a scratch tensor."""
    pattern = mask.pattern
    assert pattern is not None
    lanes, heads = query.shape[1:3]
    keys = block.earlier * pattern.summary
    out = scratch("summaries", lanes * heads, pattern.stride, keys, like=query)
    scores = torch.bmm(_by_head(query[block.queries]), _by_head(key[:keys]).transpose(1, 2), out=out)
    if position_query is not None and windows is not None:
        near = _near(windows, block, pattern)
        asking = _by_sub_block(position_query[block.queries], pattern)
        place = scratch("windows", len(asking), asking.size(1), near.size(1), like=query)
        by_distance = torch.bmm(asking, near.transpose(1, 2), out=place)
        _by_window(scores, lanes, pattern).add_(_shifted(by_distance, lanes, pattern))
    if block.masked is not None:
        scores.unflatten(0, (lanes, heads)).masked_fill_(block.masked, torch.finfo(scores.dtype).min)
    return scores


def _positions_back(
    to_scores: Tensor,
    block: _Block,
    mask: AttentionMask,
    given: tuple[Tensor, Tensor],
    to: tuple[Tensor, Tensor],
) -> None:
    """Add the gradients of position queries and windows of a block."""
    (position_query, windows), (to_position, to_windows), pattern = given, to, mask.pattern
    assert pattern is not None
    lanes = position_query.size(1)
    asking, near = _by_sub_block(position_query[block.queries], pattern), _near(windows, block, pattern)
    by_distance = scratch("windows", len(asking), asking.size(1), near.size(1), like=to_scores).zero_()
    _shifted(by_distance, lanes, pattern).copy_(_by_window(to_scores, lanes, pattern))
    _near(to_windows, block, pattern).baddbmm_(by_distance.transpose(1, 2), asking)
    back = (
        torch.bmm(by_distance, near).unflatten(1, (pattern.summary, lanes)).unflatten(0, (-1, pattern.heads))
    )
    to_position[block.queries].unflatten(0, (-1, pattern.summary)).copy_(back.permute(0, 2, 3, 1, 4))


def _near(windows: Tensor, block: _Block, pattern: Pattern) -> Tensor:
    """The windows for the blocks before this one."""
    return windows[:, windows.size(1) - block.earlier * 2 * pattern.summary :]


def _by_sub_block(rows: Tensor, pattern: Pattern) -> Tensor:
    """(u H, c B, D) Rows of a block (l, B, H, D)."""
    by_sub_block: Tensor = rows.unflatten(0, (-1, pattern.summary)).permute(0, 3, 1, 2, 4)
    return by_sub_block.flatten(2, 3).flatten(0, 1)


def _by_window(scores: Tensor, lanes: int, pattern: Pattern) -> Tensor:
    """(u, H, c, B, K / c, c) A view of scores (N, l, K)."""
    c = pattern.summary
    shape = lanes, pattern.heads, pattern.stride // c, c, scores.size(2) // c, c
    return scores.view(shape).permute(2, 1, 3, 0, 4, 5)


def _shifted(by_distance: Tensor, lanes: int, pattern: Pattern) -> Tensor:
    """(u, H, c, B, K / c, c) Scores by distance (u H, c B, (K / c) 2 c) re-indexed by summary, as a view.

    The last query of a sub-block finds its first summary in column 0 of a window, the query before it in column 1.
    """
    c, (_, places, pitch) = pattern.summary, by_distance.shape
    head = places * pitch
    return by_distance.as_strided(
        (pattern.stride // c, pattern.heads, c, lanes, pitch // (2 * c), c),
        (pattern.heads * head, head, lanes * pitch - 1, pitch, 2 * c, 1),
        by_distance.storage_offset() + c - 1,
    )
