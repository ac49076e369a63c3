"""A KV cache whose lanes share rows: a table tells which rows are each lane's past.

Beams that go on from one text share its rows, and changing places changes the table alone. A row that was written is
never written again, so a memory stays what it was whatever is read on from it.

Letters: N layers, B lanes, L keys of a lane, R rows, H heads, D head width.
"""

import threading
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from segue.config import Reach
from segue.nn.kv_memory import KVMemory
from segue.nn.layout import HOST

FIRST_ROWS = 16
"""Rows for each lane of a new buffer."""


class RowBuffer:
    """Storage for keys and values of all layers, (N, 2, R, H, D), and how many rows are taken."""

    taking = threading.Lock()  # one for all: a lock in each could be neither copied nor pickled

    def __init__(self, storage: Tensor, taken: int = 0) -> None:
        self.storage, self.taken = storage, taken

    @property
    def capacity(self) -> int:
        """R"""
        return self.storage.size(2)

    def take(self, count: int) -> int | None:
        """The first of `count` rows that nobody else has; None if there are not so many."""
        with self.taking:
            if self.taken + count > self.capacity:
                return None
            self.taken += count
            return self.taken - count


@dataclass(frozen=True, eq=False)
class KVRows:
    """The past of B lanes that have read equally many tokens."""

    buffer: RowBuffer
    table: Tensor  # (B, L) rows of the buffer, the oldest first
    read: int  # tokens that each lane has read: L, or more if only some are kept
    reach: Reach

    @property
    def lanes(self) -> int:
        return len(self.table)

    def select(self, index: Tensor) -> Self:
        """These lanes in this order. Nothing but the table is copied."""
        return replace(self, table=self.table[index])

    def with_slots(self) -> Self:
        """The same with one more row for each lane, still to be written; the oldest beyond the reach fall off."""
        past, kept = self, self.table[:, max(0, self.table.size(1) - self.reach.memory) :]
        first = self.buffer.take(self.lanes)
        if first is None:
            past = self._moved(kept)
            kept, first = past.table, past.buffer.take(self.lanes)
            assert first is not None
        slots = torch.arange(first, first + self.lanes, device=HOST)
        return replace(past, table=torch.cat([kept, slots[:, None]], dim=1), read=self.read + 1)

    def _moved(self, table: Tensor) -> Self:
        """The rows of this table in a buffer of their own with room for as many more."""
        rows, places = table.unique(return_inverse=True)
        like, held = self.buffer.storage, len(rows)
        size = 2 * (held + FIRST_ROWS * self.lanes)
        storage = like.new_empty(*like.shape[:2], size, *like.shape[3:])
        torch.index_select(like, 2, rows, out=storage[:, :, :held])
        return replace(self, buffer=RowBuffer(storage, held), table=places)

    def plain(self) -> KVMemory:
        """The same past with rows of each lane's own."""
        (lanes, keys), storage = self.table.shape, self.buffer.storage
        by_lane = storage.index_select(2, self.table.flatten()).unflatten(2, (lanes, keys))
        rows = by_lane.permute(0, 2, 3, 1, 4, 5).unbind()  # (B, L, 2, H, D) for each layer
        lengths, read = torch.full((lanes,), keys), torch.full((lanes,), self.read)
        return KVMemory.from_rows(rows, lengths, read, self.reach)


def no_rows(past: KVMemory) -> KVRows:
    """The same as an empty past with rows of each lane's own."""
    assert not past.size
    (two, heads, width), layers = past.row_shapes[0], len(past.row_shapes)
    with torch.inference_mode(False):  # else the storage could be written to in that mode alone
        storage = torch.empty(layers, two, FIRST_ROWS * past.lanes, heads, width, dtype=past.dtype)
    nothing = torch.empty(past.lanes, 0, dtype=torch.int64)
    return KVRows(RowBuffer(storage), nothing, 0, past.reach)
