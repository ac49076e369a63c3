"""What a stream carries from one segment to the next. A memory is a value: reading from it makes another one.

Letters: B lanes, M rows in memory, T tokens in the segment, C width.
The newest row of every lane is the last one. A lane may hold fewer rows than others (`lengths`): the rows before them
are not its own and are masked. The counters stay on the CPU whatever the device, so looking at them never waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from segue.config import Reach
from segue.errors import InputError
from segue.nn.layout import HOST, SegmentLayout


def last(rows: Tensor, count: int) -> Tensor:
    """The newest `count` rows of each lane. (`rows[:, -count:]` keeps all of them at 0.)"""
    return rows[:, max(0, rows.size(1) - count) :]


class Memory:
    """What every memory answers to: rows for each layer, and for each lane, how many of them are its own."""

    rows: Sequence[Tensor]  # one per layer, (B, M, ...), never with a gradient
    lengths: Tensor  # (B,) rows that belong to the lane's document
    seen: Tensor  # (B,) tokens of that document read so far
    reach: Reach
    recent: Tensor | None = None  # (B, n - 1) the last tokens of each lane, for n-grams; None without them

    @property
    def lanes(self) -> int:
        return self.lengths.size(0)

    @property
    def size(self) -> int:
        """Rows held: the longest lane's."""
        return self.rows[0].size(1)

    @property
    def most(self) -> int:
        """Rows of its own that a lane can have here at most."""
        return min(self.size, self.reach.rows)

    @property
    def row_shapes(self) -> list[tuple[int, ...]]:
        """The shape of one row, for each layer."""
        return [tuple(rows.shape[2:]) for rows in self.rows]

    @property
    def dtype(self) -> torch.dtype:
        return self.rows[0].dtype

    @property
    def device(self) -> torch.device:
        return self.rows[0].device

    def counted(self, layout: SegmentLayout) -> tuple[Tensor, Tensor]:
        """`lengths` and `seen` after one more segment."""
        read, began = layout.counts, layout.newest_start[:, -1]
        lengths = torch.where(began < 0, self.lengths + read, read - began).clamp(max=self.reach.rows)
        return lengths, torch.where(began < 0, self.seen + read, read - began)

    @property
    def places(self) -> Tensor:
        """(B, M) The place of each row in its document. Pinned rows come first; a gap may follow them."""
        places = self.seen[:, None] - self.size + torch.arange(self.size, device=HOST)
        if not self.reach.pinned:
            return places
        number = torch.arange(self.size, device=HOST) - self.size + self.lengths[:, None]
        return torch.where((number < self.reach.pinned) & (self.seen > self.lengths)[:, None], number, places)

    def select(self, index: Tensor | Sequence[int]) -> Self:
        """These lanes in this order: for beams, or to drop streams that ended. A lane may be taken twice."""
        raise NotImplementedError

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        """The lanes of all of them side by side, to be read as one batch."""
        raise NotImplementedError

    def renewed(self, lanes: Tensor, fresh: Self) -> Self:
        """The lanes marked in `lanes` (B,) taken from `fresh`, the others from here."""
        both = self.join([self, fresh])
        return both.select(torch.arange(self.lanes, device=HOST) + self.lanes * lanes)

    def resized(self, reach: Reach) -> Self:
        """The same memory, read on with another reach. Rows that have fallen off do not come back."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> Self:
        return self._rebuilt([row.to(device) for row in self.rows])

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the reach, by name, for a checkpoint."""
        own = torch.contiguous_format  # none shares another's storage
        rows = {f"rows.{layer}": row.clone(memory_format=own) for layer, row in enumerate(self.rows)}
        recent = {} if self.recent is None else {"recent": self.recent}
        return {**rows, "lengths": self.lengths, "seen": self.seen, **recent}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], reach: Reach) -> Self:
        """The memory that `tensors()` took apart."""
        layers = sum(name.startswith("rows.") for name in tensors)
        rows = tuple(tensors[f"rows.{layer}"] for layer in range(layers))
        lengths, seen = tensors["lengths"].to(HOST), tensors["seen"].to(HOST)
        memory = cls.from_rows(rows, lengths, seen, reach, tensors.get("recent"))
        low, high = int(memory.lengths.min()), int(memory.lengths.max())
        if low < 0 or high > memory.most:
            raise InputError(
                f"a memory of {memory.size} rows cannot hold {low if low < 0 else high} of a lane"
            )
        return memory

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Tensor],
        lengths: Tensor,
        seen: Tensor,
        reach: Reach,
        recent: Tensor | None = None,
    ) -> Self:
        raise NotImplementedError

    def _rebuilt(self, rows: Sequence[Tensor]) -> Self:
        recent = None if self.recent is None else self.recent.to(rows[0].device)
        return self.from_rows(rows, self.lengths, self.seen, self.reach, recent)

    def _recent_of(self, chosen: Tensor) -> Tensor | None:
        """The last tokens of the chosen lanes."""
        return None if self.recent is None else self.recent[chosen.to(self.recent.device, non_blocking=True)]


@dataclass(frozen=True, eq=False)
class RowMemory(Memory):
    """A memory with a tensor of its own for each layer."""

    rows: Sequence[Tensor]
    lengths: Tensor
    seen: Tensor
    reach: Reach
    recent: Tensor | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Tensor],
        lengths: Tensor,
        seen: Tensor,
        reach: Reach,
        recent: Tensor | None = None,
    ) -> Self:
        return cls(tuple(rows), lengths, seen, reach, recent)

    def select(self, index: Tensor | Sequence[int]) -> Self:
        chosen = checked_lanes(index, self.lanes)
        lengths = self.lengths[chosen]
        on_device = chosen.to(self.device, non_blocking=True)
        rows = tuple(last(row, int(lengths.max())).index_select(0, on_device) for row in self.rows)
        return replace(
            self, rows=rows, lengths=lengths, seen=self.seen[chosen], recent=self._recent_of(chosen)
        )

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        check_joinable(memories)
        size = max(memory.size for memory in memories)
        layers = zip(*(memory.rows for memory in memories), strict=True)
        rows = tuple(torch.cat([padded_to(row, size) for row in layer]) for layer in layers)
        return replace(memories[0], rows=rows, **joined_counts(memories))

    def resized(self, reach: Reach) -> Self:
        check_pinned(self, reach)
        lengths = self.lengths.clamp(max=reach.rows)
        if reach.pinned:
            index = kept_rows(self.size - self.lengths, torch.full_like(lengths, self.size), lengths, reach)
            rows = tuple(rows_at(row, index) for row in self.rows)
        else:
            rows = tuple(last(row, reach.memory) for row in self.rows)
        return replace(self, rows=rows, lengths=lengths, reach=reach)


class StateMemory(RowMemory):
    """The inputs of each layer, (B, M, C): for training, where the weights change between segments."""

    @property
    def states(self) -> Sequence[Tensor]:
        return self.rows

    def extended(self, fresh: Sequence[Tensor], layout: SegmentLayout, recent: Tensor | None = None) -> Self:
        """The memory after one more segment, whose states are `fresh` (B, T, C); the oldest rows fall off.

        `recent` (B, n - 1): the last tokens, for a model with n-grams.
        """
        lengths, seen = self.counted(layout)
        pairs, size = zip(self.rows, fresh, strict=True), int(lengths.max())
        if layout.lengths is None and not self.reach.pinned:
            rows = tuple(
                _joined(last(old, size - layout.size), last(new.detach(), size)) for old, new in pairs
            )
        else:
            index = rows_after(self, layout, lengths)
            rows = tuple(rows_at(_joined(old, new.detach()), index) for old, new in pairs)
        return replace(self, rows=rows, lengths=lengths, seen=seen, recent=recent)


class OneRowMemory(RowMemory):
    """One state per layer is all there is, whatever the reach; lanes without one have zeros, or there is no row."""

    def counted(self, layout: SegmentLayout) -> tuple[Tensor, Tensor]:
        lengths, seen = super().counted(layout)
        return lengths.clamp(max=1), seen


class KernelMemory(OneRowMemory):
    """The sums of kernel attention, (B, 1, H, F, D + 1): Σ φ(k) vᵀ, and Σ φ(k) in the last column."""

    def state(self, layer: int) -> Tensor:
        """(B, H, F, D + 1)"""
        return padded_to(self.rows[layer], 1).squeeze(1)

    def advanced(self, states: Sequence[Tensor], layout: SegmentLayout) -> Self:
        """The memory after one more segment, which left these states behind."""
        lengths, seen = self.counted(layout)
        rows = tuple(state.detach()[:, None][:, : int(lengths.max())] for state in states)
        return replace(self, rows=rows, lengths=lengths, seen=seen)


class CellMemory(OneRowMemory):
    """The newest state of each recurrent layer, (B, 1, K, C): K = 1, or 2 with the cell of an LSTM."""

    @property
    def states(self) -> tuple[Tensor, ...]:
        """K tensors (layers, B, C), as torch's recurrent layers want them."""
        rows = torch.stack([padded_to(row, 1).squeeze(1) for row in self.rows])
        return rows.unbind(dim=2)

    def advanced(self, states: Sequence[Tensor], layout: SegmentLayout) -> Self:
        """The memory after one more segment, which left these states behind."""
        lengths, seen = self.counted(layout)
        layers = torch.stack([state.detach() for state in states], dim=2)[:, :, None]
        rows = tuple(layer[:, : int(lengths.max())] for layer in layers)
        return replace(self, rows=rows, lengths=lengths, seen=seen)


def _joined(old: Tensor, new: Tensor) -> Tensor:
    """(B, M + T, C) One after the other, time first in storage, as the layers will read it."""
    return torch.cat([old.transpose(0, 1), new.transpose(0, 1)]).transpose(0, 1)


def rows_at(rows: Tensor, index: Tensor) -> Tensor:
    """The rows at each lane's own index (B, count)."""
    lane = torch.arange(len(index), device=rows.device)[:, None]
    return rows[lane, index.to(rows.device, non_blocking=True)]


def newest_before_padding(ends: Tensor, count: int) -> Tensor:
    """(B, count) The index of each lane's rows before its end. Rows before its beginning are anything: masked."""
    return (ends[:, None] - count + torch.arange(count, device=HOST)).clamp(min=0)


def rows_after(memory: Memory, layout: SegmentLayout, lengths: Tensor) -> Tensor:
    """(B, size) Which rows of memory and segment a memory keeps that will have `lengths` (B,) rows of each lane."""
    began, end = layout.newest_start[:, -1], memory.size + layout.counts
    if not memory.reach.pinned:
        return newest_before_padding(end, int(lengths.max()))
    first = torch.where(began < 0, memory.size - memory.lengths, memory.size + began)
    return kept_rows(first, end, lengths, memory.reach)


def kept_rows(first: Tensor, end: Tensor, lengths: Tensor, reach: Reach) -> Tensor:
    """(B, size) Of the rows first … end of each lane, the pinned ones and the newest: `lengths` (B,) in all."""
    size = int(lengths.max())
    newest = newest_before_padding(end, size)
    number = torch.arange(size, device=HOST) - size + lengths[:, None]
    return torch.where(number < reach.pinned, first[:, None] + number, newest).clamp(min=0)


def check_pinned(memory: Memory, reach: Reach) -> None:
    """Refuse to pin other rows than have been kept from the beginning."""
    if reach.pinned != memory.reach.pinned and bool(memory.seen.any()):
        raise InputError(
            f"this memory has kept {memory.reach.pinned} pinned rows from the start of its documents, "
            f"not {reach.pinned}; start a new memory"
        )


def padded_to(rows: Tensor, size: int) -> Tensor:
    """Zero rows before the oldest, up to `size` rows."""
    behind = [0, 0] * (rows.dim() - 2)
    return F.pad(rows, (*behind, size - rows.size(1), 0))


def checked_lanes(index: Tensor | Sequence[int], lanes: int) -> Tensor:
    """The index of `select` as a tensor on the CPU, or an error that says what is wrong with it."""
    try:
        chosen = torch.as_tensor(index, device=HOST)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"select wants numbers of lanes between 0 and {lanes - 1}; found {index!r}"
        ) from None
    integer = not (chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool)
    chosen = chosen.long() if integer or not chosen.numel() else chosen
    integer = integer or not chosen.numel()
    if (
        not integer
        or chosen.dim() != 1
        or not len(chosen)
        or int(chosen.min()) < 0
        or int(chosen.max()) >= lanes
    ):
        raise InputError(f"select wants numbers of lanes between 0 and {lanes - 1}; found {chosen.tolist()}")
    return chosen


def check_joinable(memories: Sequence[Memory]) -> None:
    """Refuse to join memories of different kinds, reaches or models."""
    if not memories:
        raise InputError("join wants at least one memory; found none")
    first = memories[0]
    for other in memories[1:]:
        if type(first) is not type(other) or first.reach != other.reach:
            raise InputError(
                f"join wants memories of one kind and reach; found {type(first).__name__} with {first.reach!r} "
                f"and {type(other).__name__} with {other.reach!r}; use resized() or an engine's project() first"
            )
        if _model_of(first) != _model_of(other):
            raise InputError(
                "join wants memories of one model; these have other layers, widths, precision or device"
            )


def _model_of(memory: Memory) -> tuple[Any, ...]:
    """What memories of one model have in common."""
    tokens = 0 if memory.recent is None else memory.recent.size(1)
    return memory.row_shapes, memory.dtype, memory.device, tokens


def joined_counts(memories: Sequence[Memory]) -> dict[str, Any]:
    """What is known of each lane beside its rows, of all memories side by side, by name."""
    recent = [memory.recent for memory in memories if memory.recent is not None]
    return {
        "lengths": torch.cat([memory.lengths for memory in memories]),
        "seen": torch.cat([memory.seen for memory in memories]),
        "recent": torch.cat(recent) if recent else None,
    }


def register_memory(kind: type[Memory]) -> None:
    """Make the memory a pytree, so that torch can walk through it."""

    def taken_apart(memory: Memory) -> tuple[list[Any], Reach]:
        return [tuple(memory.rows), memory.lengths, memory.seen, memory.recent], memory.reach

    def put_together(parts: Iterable[Any], reach: Any) -> Memory:
        rows, lengths, seen, recent = parts
        return kind.from_rows(rows, lengths, seen, reach, recent)

    register_pytree_node(kind, taken_apart, put_together)


register_memory(StateMemory)
register_memory(CellMemory)
register_memory(KernelMemory)
