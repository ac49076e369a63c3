"""What a stream carries over the seam. A memory is a value: reading from it makes another one.

Letters: B lanes, M states in memory, C width, H heads, D head width.
The newest state of every lane is the last row. Lanes may hold less than others (`lengths`): what lies before is
not theirs and is masked. The counters stay on the host whatever the device, so looking at them is free.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from segue.config import Reach
from segue.errors import InputError
from segue.nn.layout import HOST, SegmentLayout
from segue.nn.positions import RelativeKeys


def last(rows: Tensor, count: int) -> Tensor:
    """The newest `count` rows of each lane. (`rows[:, -count:]` keeps all of them at 0.)"""
    return rows[:, max(0, rows.size(1) - count) :]


@dataclass(frozen=True, eq=False)
class Memory:
    """For each layer, its newest rows; and for each lane, how many of them are its own."""

    rows: Sequence[Tensor]  # one per layer, (B, M, ...), never with a gradient
    lengths: Tensor  # (B,) rows that belong to the lane's document
    seen: Tensor  # (B,) tokens of that document read so far
    reach: Reach

    @property
    def lanes(self) -> int:
        return self.lengths.size(0)

    @property
    def size(self) -> int:
        """Rows held: the longest lane's."""
        return self.rows[0].size(1)

    def counted(self, layout: SegmentLayout) -> tuple[Tensor, Tensor]:
        """`lengths` and `seen` after one more segment."""
        read, began = layout.counts, layout.newest_start[:, -1]
        lengths = torch.where(began < 0, self.lengths + read, read - began).clamp(max=self.reach.memory)
        return lengths, torch.where(began < 0, self.seen + read, read - began)

    def with_rows(self, rows: Sequence[Tensor], **changes: Any) -> Self:
        """The same memory with other rows."""
        return replace(self, rows=rows, **changes)

    def select(self, index: Tensor | Sequence[int]) -> Self:
        """These lanes in this order: for beams, or to drop streams that ended. A lane may be taken twice."""
        chosen = torch.as_tensor(index, device=HOST)
        whole = chosen.dtype in (torch.int64, torch.int32) or not chosen.numel()
        if (
            not whole
            or chosen.dim() != 1
            or not len(chosen)
            or int(chosen.min()) < 0
            or int(chosen.max()) >= self.lanes
        ):
            raise InputError(
                f"select wants numbers of lanes between 0 and {self.lanes - 1}; found {chosen.tolist()}"
            )
        lengths = self.lengths[chosen]
        on_device = chosen.to(self.rows[0].device)
        rows = tuple(last(row, int(lengths.max())).index_select(0, on_device) for row in self.rows)
        return self.with_rows(rows, lengths=lengths, seen=self.seen[chosen])

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        """The lanes of all of them side by side, to be read as one batch."""
        if not memories:
            raise InputError("join wants at least one memory; found none")
        first = memories[0]
        for other in memories[1:]:
            _check_joinable(first, other)
        size = max(memory.size for memory in memories)
        layers = zip(*(memory.rows for memory in memories), strict=True)
        rows = tuple(torch.cat([_padded_to(row, size) for row in layer]) for layer in layers)
        lengths = torch.cat([memory.lengths for memory in memories])
        return first.with_rows(rows, lengths=lengths, seen=torch.cat([memory.seen for memory in memories]))

    def renewed(self, lanes: Tensor, fresh: Self) -> Self:
        """The lanes marked in `lanes` (B,) taken from `fresh`, the others from here."""
        both = self.join([self, fresh])
        return both.select(torch.arange(self.lanes, device=HOST) + self.lanes * lanes)

    def resized(self, reach: Reach) -> Self:
        """The same memory, read on with another reach. What has fallen off does not come back."""
        rows = tuple(last(row, reach.memory) for row in self.rows)
        return self.with_rows(rows, lengths=self.lengths.clamp(max=reach.memory), reach=reach)

    def to(self, device: torch.device | str) -> Self:
        return self.with_rows(tuple(row.to(device) for row in self.rows))

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the reach, by name, for a checkpoint."""
        own = torch.contiguous_format  # none shares another's storage
        rows = {f"rows.{layer}": row.clone(memory_format=own) for layer, row in enumerate(self.rows)}
        return {**rows, "lengths": self.lengths, "seen": self.seen}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], reach: Reach) -> Self:
        """The memory that `tensors()` took apart."""
        layers = sum(name.startswith("rows.") for name in tensors)
        rows = tuple(tensors[f"rows.{layer}"] for layer in range(layers))
        return cls(rows, tensors["lengths"].to(HOST), tensors["seen"].to(HOST), reach)


class StateMemory(Memory):
    """The inputs of each layer, (B, M, C): right for training, where the weights move between segments."""

    @property
    def states(self) -> Sequence[Tensor]:
        return self.rows

    def extended(self, fresh: Sequence[Tensor], layout: SegmentLayout) -> Self:
        """The memory after one more segment, whose states are `fresh` (B, T, C); the oldest rows fall off."""
        lengths, seen = self.counted(layout)
        pairs, size = zip(self.rows, fresh, strict=True), int(lengths.max())
        if layout.lengths is None:
            rows = tuple(
                _joined(last(old, size - layout.size), last(new.detach(), size)) for old, new in pairs
            )
        else:
            place = _newest_before_padding(self.size + layout.lengths, size)
            rows = tuple(_gathered(_joined(old, new.detach()), place) for old, new in pairs)
        return replace(self, rows=rows, lengths=lengths, seen=seen)


class CellMemory(Memory):
    """The newest state of each recurrent layer, (B, 1, K, C): K = 1, or 2 with the cell of an LSTM.

    One state is all there is, whatever the reach asks for; lanes that hold none have zeros, or there is no row at all.
    """

    def counted(self, layout: SegmentLayout) -> tuple[Tensor, Tensor]:
        lengths, seen = super().counted(layout)
        return lengths.clamp(max=1), seen

    @property
    def states(self) -> tuple[Tensor, ...]:
        """K tensors (layers, B, C), as torch's recurrent layers want them."""
        rows = torch.stack([_padded_to(row, 1).squeeze(1) for row in self.rows])
        return rows.unbind(dim=2)

    def advanced(self, states: Sequence[Tensor], layout: SegmentLayout) -> Self:
        """The memory after one more segment, which left these states behind."""
        lengths, seen = self.counted(layout)
        layers = torch.stack([state.detach() for state in states], dim=2)[:, :, None]
        rows = tuple(layer[:, : int(lengths.max())] for layer in layers)
        return replace(self, rows=rows, lengths=lengths, seen=seen)


class LayerStep(Protocol):
    """A layer reading one token: (B, C) in and out, and keys and values (2, B, H, S, D)."""

    def __call__(self, hidden: Tensor, keys_values: Tensor, /) -> Tensor: ...


class KVSlots(NamedTuple):
    """A layer's keys and values (2, M + T, B, H, D), the last T of them still to be written."""

    rows: Tensor


class KVBuffer:
    """Keys and values of all layers, (layers, 2, B, H, capacity, D), filled up to somewhere.

    Each head's lie in one piece, as its queries read them. Memories are views, each up to its own end. What lies
    behind the newest of them is free to be written, so reading on copies nothing; a memory that is not the newest
    any more must be copied first.
    """

    taking = threading.Lock()  # of all shelves, since one of each could be neither copied nor pickled

    def __init__(self, storage: Tensor, filled: int) -> None:
        self.storage, self.filled = storage, filled

    def take(self, end: int, size: int) -> bool:
        """Take `size` rows behind `end`. False if another memory, of any thread, has them, or if no room is left."""
        with self.taking:
            free = self.filled == end and end + size <= self.storage.size(4)
            if free:
                self.filled += size
            return free

    def rows(self, begin: int, end: int) -> "KVView":
        """For each layer (B, rows, 2, H, D)."""
        return KVView(self.storage, begin, end)


@dataclass(frozen=True, eq=False)
class KVView(Sequence[Tensor]):
    """Some rows of a shelf, as views that are made when they are asked for."""

    storage: Tensor
    begin: int
    end: int

    def __len__(self) -> int:
        return len(self.storage)

    def __getitem__(self, layer: Any) -> Any:
        return self.storage[layer][..., self.begin : self.end, :].permute(1, 3, 0, 2, 4)


@dataclass(frozen=True, eq=False)
class KVMemory(Memory):
    """The keys and values that each layer made of its inputs, (B, M, 2, H, D): right while the weights stand still.

    What follows is there to save work: nothing is lost without it.
    """

    buffer: KVBuffer | None = None  # that the rows are a view of
    end: int = 0  # where on the shelf they end
    relations: tuple[RelativeKeys | None, ...] = ()  # what each layer makes of distance,
    related: int = 0  # for up to so many keys
    steps: tuple["LayerStep", ...] = ()  # each layer reading one token

    def with_rows(self, rows: Sequence[Tensor], **changes: Any) -> Self:
        return replace(self, rows=rows, buffer=None, end=0, relations=(), related=0, steps=(), **changes)

    def with_room(self, size: int) -> Self:
        """The same memory on a shelf with room for `size` more rows behind it, which are taken from now on."""
        buffer, end = self.buffer, self.end
        if buffer is None or not buffer.take(end, size):
            buffer, end = self._copied(size), self.size
        return replace(self, rows=buffer.rows(end - self.size, end), buffer=buffer, end=end)

    def _copied(self, size: int) -> KVBuffer:
        """A new shelf with this memory's rows and `size` more, taken, and some to spare."""
        capacity = self.size + size + max(size, self.size // 4)
        heads, wide = self.rows[0].shape[3:]
        with torch.inference_mode(False):  # whose tensors could be written to in that mode alone
            storage = self.rows[0].new_empty(len(self.rows), 2, self.lanes, heads, capacity, wide)
        buffer = KVBuffer(storage, self.size + size)
        for place, rows in zip(buffer.rows(0, self.size), self.rows, strict=True):
            place.copy_(rows)
        return buffer

    def rooms(self, size: int) -> list[KVSlots]:
        """For each layer, what it holds and the room behind it."""
        assert self.buffer is not None
        whole = self.buffer.rows(self.end - self.size, self.end + size)
        return [KVSlots(rows.transpose(0, 2)) for rows in whole]

    def extended(self, layout: SegmentLayout) -> Self:
        """The memory after one more segment, whose keys and values now stand in the room behind this one."""
        assert self.buffer is not None
        lengths, seen = self.counted(layout)
        end, size = self.end + layout.size, int(lengths.max())
        if layout.lengths is None:
            on_shelf = self.buffer.rows(end - size, end)
            return replace(self, rows=on_shelf, lengths=lengths, seen=seen, end=end)
        place = _newest_before_padding(self.size + layout.lengths, size)
        whole = self.buffer.rows(self.end - self.size, end)
        rows = tuple(_gathered(row, place) for row in whole)
        return replace(self, rows=rows, lengths=lengths, seen=seen, buffer=None, end=0)


def _joined(old: Tensor, new: Tensor) -> Tensor:
    """(B, M + T, C) One after the other, time first in storage, as the layers will read it."""
    return torch.cat([old.transpose(0, 1), new.transpose(0, 1)]).transpose(0, 1)


def _gathered(rows: Tensor, place: Tensor) -> Tensor:
    """The rows at each lane's places (B, count)."""
    lane = torch.arange(len(place), device=rows.device)[:, None]
    return rows[lane, place.to(rows.device)]


def _newest_before_padding(ends: Tensor, count: int) -> Tensor:
    """(B, count) The places of each lane's rows before its end. Those before its beginning are anything: masked."""
    return (ends[:, None] - count + torch.arange(count, device=HOST)).clamp(min=0)


def _padded_to(rows: Tensor, size: int) -> Tensor:
    """Zero rows before the oldest, up to `size` rows."""
    behind = [0, 0] * (rows.dim() - 2)
    return F.pad(rows, (*behind, size - rows.size(1), 0))


def _check_joinable(first: Memory, other: Memory) -> None:
    if type(first) is not type(other) or first.reach != other.reach:
        raise InputError(
            f"join wants memories of one kind and reach; found {type(first).__name__} with {first.reach!r} "
            f"and {type(other).__name__} with {other.reach!r}; use resized() or projected() first"
        )
    if [(row.shape[2:], row.dtype, row.device) for row in first.rows] != [
        (row.shape[2:], row.dtype, row.device) for row in other.rows
    ]:
        raise InputError(
            "join wants memories of one model; these have other layers, widths, precision or device"
        )


def _taken_apart(memory: Memory) -> tuple[list[Any], Reach]:
    return [tuple(memory.rows), memory.lengths, memory.seen], memory.reach


def _register(kind: type[Memory]) -> None:
    """Make the memory a pytree, so that torch can walk through it."""

    def put_together(parts: Iterable[Any], reach: Any) -> Memory:
        rows, lengths, seen = parts
        return kind(rows, lengths, seen, reach)

    register_pytree_node(kind, _taken_apart, put_together)


_register(StateMemory)
_register(CellMemory)
_register(KVMemory)
