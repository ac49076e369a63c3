"""Which keys each block of queries needs, where windows look to both sides and some tokens are global.

Letters: S tokens, H heads, D head width; g global tokens, t queries of a block, W keys of a run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from segue.nn import blockwise
from segue.nn.mask import AttentionMask
from segue.nn.positions import RelativeKeys


class WindowBlock(NamedTuple):
    """A block of queries, and the runs of keys that they see: global tokens, and those around the block."""

    queries: slice
    runs: tuple[slice, ...]

    def distances(self, run: slice, nearest: int) -> slice:
        """The t + W - 1 rows of relative keys that occur between the queries and a run; `nearest` is distance 0."""
        return slice(nearest + 1 - self.queries.stop + run.start, nearest - self.queries.start + run.stop)


class Pieces:
    """A tensor cut once, so that runs of it that overlap cost their own length in the backward pass too.

    (The gradient of a slice is as long as the whole tensor: a slice for each block would cost the length squared.)
    """

    def __init__(self, tensor: Tensor, runs: Iterable[slice], dim: int = 0) -> None:
        edges = sorted({0, tensor.size(dim), *(edge for run in runs for edge in (run.start, run.stop))})
        self.number = {edge: number for number, edge in enumerate(edges)}
        self.parts = tensor.split([right - left for left, right in pairwise(edges)], dim)
        self.dim = dim

    def __getitem__(self, run: slice) -> Tensor:
        return torch.cat(self.parts[self.number[run.start] : self.number[run.stop]], self.dim)


class RelativePieces:
    """Relative keys of both sides, cut for all blocks."""

    def __init__(self, relative: RelativeKeys, blocks: Sequence[WindowBlock]) -> None:
        self.relative, self.nearest = relative, len(relative.rows) // 2
        here = [block.distances(run, self.nearest) for block in blocks for run in block.runs]
        self.rows = Pieces(relative.rows, here)
        self.row_bias = None if relative.row_bias is None else Pieces(relative.row_bias, here)

    def between(self, block: WindowBlock, run: slice) -> RelativeKeys:
        """The relative keys of the distances between a block's queries and a run of keys."""
        here = block.distances(run, self.nearest)
        bias = None if self.row_bias is None else self.row_bias[here]
        return replace(self.relative, rows=self.rows[here], row_bias=bias)


def window_blocks(mask: AttentionMask) -> Iterator[WindowBlock]:
    """All queries in blocks: the global ones with all keys, the others with the global keys and their windows."""
    assert mask.window is not None
    size, aside, few = mask.size, mask.window // 2, blockwise.QUERY_BLOCK
    first = min(mask.global_tokens, size)
    for begin in range(0, first, few):
        yield WindowBlock(slice(begin, min(begin + few, first)), (slice(0, size),))
    for begin in range(first, size, few):
        end = min(begin + few, size)
        low, high = max(0, begin - aside), min(size, end + aside)
        apart = first < low
        runs = (slice(0, first), slice(low, high)) if first and apart else (slice(low if apart else 0, high),)
        yield WindowBlock(slice(begin, end), runs)
