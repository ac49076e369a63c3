"""The KV cache as a value: keys and values of what was read, for reading with weights that do not change.

Letters: N layers, B lanes, M rows in memory, T tokens in the segment, H heads, D head width.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from segue.config import Reach
from segue.nn.kv_precision import packed, unpacked
from segue.nn.layout import HOST, SegmentLayout
from segue.nn.memory import (
    Memory,
    check_joinable,
    check_pinned,
    checked_lanes,
    joined_counts,
    kept_rows,
    padded_to,
    register_memory,
    rows_after,
    rows_at,
)

MOST_VIEWS = 32
"""Parts that a selection of lanes may be cut into without a copy. More of them cost more than copying once."""


class KVSlots(NamedTuple):
    """A layer's keys and values (2, M + T, B, H, D); the last T of them are still to be written."""

    rows: Tensor


class KVBuffer:
    """Storage for keys and values of all layers, (N, 2, B, H, capacity, D), each lane filled up to its own end.

    The rows of one head lie in one piece, as its queries read them. Memories are views, each up to its own end. Rows
    behind the newest memory of a lane are free: reading on writes there and copies nothing. A memory that is not the
    newest of its lanes any more is copied first.
    """

    taking = (
        threading.Lock()
    )  # one for all buffers, because a lock in each could be neither copied nor pickled

    def __init__(self, storage: Tensor, filled: int) -> None:
        self.storage, self.filled = storage, [filled] * storage.size(2)

    def take(self, lanes: slice, end: int, size: int) -> bool:
        """Take `size` rows behind `end`. False if another memory, of any thread, has them, or if the buffer is full."""
        with self.taking:
            free = end + size <= self.storage.size(4) and set(self.filled[lanes]) == {end}
            if free:
                self.filled[lanes] = [end + size] * (lanes.stop - lanes.start)
            return free


@dataclass(frozen=True, eq=False)
class KVPart:
    """Neighbouring lanes of one buffer, with their newest `size` rows before `end`."""

    buffer: KVBuffer
    lanes: slice
    size: int
    end: int

    @property
    def count(self) -> int:
        """B"""
        return int(self.lanes.stop - self.lanes.start)

    def keys_values(self, keys: int, more: int = 0) -> Tensor:
        """(N, 2, B, H, keys, D) A view of the newest `keys` rows, `more` slots behind the end among them."""
        end = self.end + more
        return self.buffer.storage[:, :, self.lanes, :, end - keys : end]

    def with_slots(self, size: int) -> "KVPart":
        """The same rows with `size` slots behind them, which are taken from now on."""
        if self.buffer.take(self.lanes, self.end, size):
            return self
        return _stored([self], self.size, size)


def _stored(parts: Sequence[KVPart], size: int, slots: int) -> KVPart:
    """A copy of the parts' lanes in one new buffer, padded with zeros to `size` rows, with `slots` more rows taken."""
    lanes, like = sum(part.count for part in parts), parts[0].buffer.storage
    # Room for four more segments, but not for more than is held: a long memory is then copied at every fifth segment.
    capacity = size + slots + max(slots, min(4 * slots, size), size // 4)
    with torch.inference_mode(False):  # else the storage could be written to in that mode alone
        storage = like.new_empty(*like.shape[:2], lanes, like.size(3), capacity, like.size(5))
    first = 0
    for part in parts:
        place, padding = storage[:, :, first : first + part.count], size - part.size
        place[..., :padding, :] = 0
        place[..., padding:size, :] = part.keys_values(part.size)
        first += part.count
    return KVPart(KVBuffer(storage, size + slots), slice(0, lanes), size, size)


@dataclass(frozen=True, eq=False)
class KVMemory(Memory):
    """The keys and values that each layer made of its inputs, (B, M, 2, H, D), for weights that do not change.

    They may be stored in fewer bits than the model's (`kv_precision.py`): as float16, or as rows of int8, (B, M, 2, H,
    D + 4) with the scale of each row in its last four bytes.

    Lanes may lie in several buffers (`parts`): joining memories and dropping lanes copies nothing.
    """

    parts: tuple[KVPart, ...]
    lengths: Tensor
    seen: Tensor
    reach: Reach
    recent: Tensor | None = None

    @property
    def rows(self) -> Sequence[Tensor]:  # type: ignore[override]  # computed, not stored
        """For each layer (B, M, 2, H, D): a view where all lanes lie in one buffer, else a copy."""
        by_part = [part.keys_values(part.size).permute(0, 2, 4, 1, 3, 5) for part in self.parts]
        if len(by_part) == 1:
            return by_part[0].unbind()
        layers = zip(*by_part, strict=True)
        return tuple(torch.cat([padded_to(rows, self.size) for rows in layer]) for layer in layers)

    @property
    def size(self) -> int:
        return max(part.size for part in self.parts)

    @property
    def row_shapes(self) -> list[tuple[int, ...]]:
        layers, two, _, heads, _, width = self.parts[0].buffer.storage.shape
        return [(two, heads, width)] * layers

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].buffer.storage.dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].buffer.storage.device

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Tensor],
        lengths: Tensor,
        seen: Tensor,
        reach: Reach,
        recent: Tensor | None = None,
    ) -> Self:
        """A memory that holds these rows, (B, M, 2, H, D) for each layer."""
        storage = torch.stack([layer.permute(2, 0, 3, 1, 4) for layer in rows])
        size = storage.size(4)
        part = KVPart(KVBuffer(storage, size), slice(0, len(lengths)), size, size)
        return cls((part,), lengths, seen, reach, recent)

    def select(self, index: Tensor | Sequence[int]) -> Self:
        chosen = checked_lanes(index, self.lanes)
        lengths = self.lengths[chosen]
        views = self._views(chosen.tolist())
        repeated = len(set(chosen.tolist())) < len(chosen)
        if repeated or len(views) > max(MOST_VIEWS, len(self.parts)):
            parts: tuple[KVPart, ...] = (self._gathered(chosen, int(lengths.max())),)
        else:
            parts = tuple(_trimmed(views, lengths))
        return replace(
            self, parts=parts, lengths=lengths, seen=self.seen[chosen], recent=self._recent_of(chosen)
        )

    def _views(self, chosen: list[int]) -> list[KVPart]:
        """The chosen lanes where they lie, neighbours together."""
        homes = [(part, lane) for part in self.parts for lane in range(part.lanes.start, part.lanes.stop)]
        views: list[KVPart] = []
        home: KVPart | None = None
        for part, lane in (homes[number] for number in chosen):
            if part is home and views[-1].lanes.stop == lane:
                views[-1] = replace(views[-1], lanes=slice(views[-1].lanes.start, lane + 1))
            else:
                views.append(replace(part, lanes=slice(lane, lane + 1)))
            home = part
        return views

    def _gathered(self, chosen: Tensor, size: int) -> KVPart:
        """A copy of the chosen lanes in a new buffer."""
        part = self.parts[0] if len(self.parts) == 1 else _stored(self.parts, self.size, 0)
        storage = part.keys_values(size).index_select(2, chosen.to(self.device, non_blocking=True))
        return KVPart(KVBuffer(storage, size), slice(0, len(chosen)), size, size)

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        check_joinable(memories)
        return replace(
            memories[0],
            parts=tuple(part for memory in memories for part in memory.parts),
            **joined_counts(memories),
        )

    def renewed(self, lanes: Tensor, fresh: Self) -> Self:
        check_joinable([self, fresh])
        if fresh.size or fresh.lanes != self.lanes:
            return super().renewed(lanes, fresh)
        return replace(  # the rows stay where they are, masked; so do the last tokens, which `seen` hides
            self,
            lengths=torch.where(lanes, fresh.lengths, self.lengths),
            seen=torch.where(lanes, fresh.seen, self.seen),
        )

    def __reduce__(self) -> Any:
        """Copies and pickles hold the lanes' own rows: no free slots, and no lanes of others in the same buffer."""
        rows = tuple(layer.clone(memory_format=torch.contiguous_format) for layer in self.rows)
        return _rebuilt, (rows, self.lengths, self.seen, self.reach, self.recent)

    def resized(self, reach: Reach) -> Self:
        check_pinned(self, reach)
        if reach.pinned:
            lengths = self.lengths.clamp(max=reach.rows)
            index = kept_rows(self.size - self.lengths, torch.full_like(lengths, self.size), lengths, reach)
            rows = [rows_at(row, index) for row in self.rows]
            return self.from_rows(rows, lengths, self.seen, reach, self.recent)
        parts = tuple(replace(part, size=min(part.size, reach.memory)) for part in self.parts)
        return replace(self, parts=parts, lengths=self.lengths.clamp(max=reach.memory), reach=reach)

    def stored_as(self, kind: torch.dtype, exact: torch.dtype) -> Self:
        """The same memory with rows of another precision. `exact` is the model's own."""
        if kind == self.dtype:
            return self
        return self._rebuilt([packed(unpacked(rows, exact), kind) for rows in self.rows])

    def merged(self) -> Self:
        """The same memory in one buffer."""
        return self if len(self.parts) == 1 else replace(self, parts=(_stored(self.parts, self.size, 0),))

    def with_slots(self, size: int) -> Self:
        """The same memory with `size` slots behind each lane, which are taken from now on."""
        return replace(self, parts=tuple(part.with_slots(size) for part in self.parts))

    def slots(self, size: int) -> list[KVSlots]:
        """For each layer, the keys and values held and `size` slots behind them, of a memory in one buffer."""
        (part,) = self.parts
        layers = part.keys_values(part.size + size, more=size).permute(0, 1, 4, 2, 3, 5)
        return [KVSlots(rows) for rows in layers]

    def extended(self, layout: SegmentLayout, recent: Tensor | None = None) -> Self:
        """The memory after one more segment, whose keys and values were written into the slots behind this one.

        `recent` (B, n - 1): the last tokens, for a model with n-grams.
        """
        lengths, seen = self.counted(layout)
        if layout.lengths is None and not self.reach.pinned:
            ends = [replace(part, end=part.end + layout.size, size=self.reach.memory) for part in self.parts]
            parts = tuple(_trimmed(ends, lengths))
            return replace(self, parts=parts, lengths=lengths, seen=seen, recent=recent)
        index = rows_after(self, layout, lengths)
        rows = [rows_at(slots.rows.transpose(0, 2), index) for slots in self.slots(layout.size)]
        return self.from_rows(rows, lengths, seen, self.reach, recent)


def _trimmed(parts: Sequence[KVPart], lengths: Tensor) -> list[KVPart]:
    """The parts with as many rows as their longest lane holds."""
    by_part = lengths.split([part.count for part in parts])
    return [
        replace(part, size=min(part.size, int(held.max()))) for part, held in zip(parts, by_part, strict=True)
    ]


def _rebuilt(
    rows: Sequence[Tensor], lengths: Tensor, seen: Tensor, reach: Reach, recent: Tensor | None
) -> KVMemory:
    return KVMemory.from_rows(rows, lengths, seen, reach, recent)


def empty_memory(like: Tensor, layers: int, row: tuple[int, int], lanes: int, reach: Reach) -> KVMemory:
    """The memory of lanes that have read nothing; a row is (heads, head width)."""
    nothing = torch.zeros(lanes, dtype=torch.int64, device=HOST)
    empty = like.new_zeros(lanes, 0, 2, *row)
    return KVMemory.from_rows([empty] * layers, nothing, nothing, reach)


register_memory(KVMemory)
