"""The memory of convolutions: what their filters still see.

Letters: B lanes, T tokens in the segment, M rows in memory, S = M + T, C width.
Unlike a Transformer's, its size is fixed by the shape of the model: any `Reach.memory` of 1 or more carries it on.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from segue.config import Reach
from segue.nn.layout import SegmentLayout
from segue.nn.memory import (
    RowMemory,
    check_joinable,
    checked_lanes,
    joined_counts,
    last,
    newest_before_padding,
    padded_to,
    register_memory,
    rows_at,
)


class FilterMemory(RowMemory):
    """The last inputs of each convolution, (B, (k-1)d, C), and of a QRNN also its states, (B, 1, C).

    Rows from before a document's first token are zeros. Convolutions have rows of different counts and widths.
    """

    @property
    def size(self) -> int:
        return max(rows.size(1) for rows in self.rows)

    def advanced(self, rows: Sequence[Tensor], layout: SegmentLayout) -> Self:
        """The memory after one more segment, which left these rows behind."""
        kept = tuple(row.detach() if self.reach.memory else row[:, :0] for row in rows)
        read, began = layout.counts, layout.newest_start[:, -1]
        lengths, seen = (
            torch.where(began < 0, past + read, read - began) for past in (self.lengths, self.seen)
        )
        return replace(
            self, rows=kept, lengths=lengths.clamp(max=max(row.size(1) for row in kept)), seen=seen
        )

    @property
    def most(self) -> int:
        return self.size

    def select(self, index: Tensor | Sequence[int]) -> Self:
        chosen = checked_lanes(index, self.lanes)
        on_device = chosen.to(self.device, non_blocking=True)
        rows = tuple(row.index_select(0, on_device) for row in self.rows)
        return replace(self, rows=rows, lengths=self.lengths[chosen], seen=self.seen[chosen])

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        check_joinable(memories)
        rows = []
        for layer in zip(*(memory.rows for memory in memories), strict=True):
            count = max(row.size(1) for row in layer)
            rows.append(torch.cat([padded_to(row, count) for row in layer]))
        return replace(memories[0], rows=tuple(rows), **joined_counts(memories))

    def resized(self, reach: Reach) -> Self:
        if reach.memory:
            return replace(self, reach=reach)
        rows = tuple(row[:, :0] for row in self.rows)
        return replace(self, rows=rows, lengths=torch.zeros_like(self.lengths), reach=reach)


def newest_rows(joined: Tensor, count: int, layout: SegmentLayout) -> Tensor:
    """(B, count, C) The newest inputs of each lane among `joined` (S, B, C): memory, then the segment.

    Inputs of earlier documents become zeros, and padding is left out.
    """
    rows, before = joined.detach().transpose(0, 1), len(joined) - layout.size
    index = newest_before_padding(before + layout.counts, count)
    newest = last(rows, count).clone() if layout.lengths is None else rows_at(rows, index)
    if layout.starts is None:
        return newest
    began = layout.newest_start[:, -1:]
    earlier = (began >= 0) & (index < before + began)
    return newest.masked_fill(earlier.to(newest.device, non_blocking=True)[..., None], 0)


register_memory(FilterMemory)
