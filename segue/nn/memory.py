"""What a stream carries over the seam. A memory is a value: reading from it makes another one.

Letters: B lanes, M states in memory, C width, H heads, D head width.
The newest state of every lane is the last row. Lanes may hold less than others (`lengths`): what lies before is
not theirs and is masked. The counters stay on the host whatever the device, so looking at them is free.
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
from segue.nn.passage import HOST, Passage


def last(rows: Tensor, count: int) -> Tensor:
    """The newest `count` rows of each lane. (`rows[:, -count:]` keeps all of them at 0.)"""
    return rows[:, max(0, rows.size(1) - count) :]


@dataclass(frozen=True, eq=False)
class Memory:
    """For each layer, its newest rows; and for each lane, how many of them are its own."""

    rows: tuple[Tensor, ...]  # one per layer, (B, M, ...), never with a gradient
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

    def extended(self, fresh: Sequence[Tensor], passage: Passage) -> Self:
        """The memory after one more segment; the oldest rows fall off."""
        read, began = passage.counts, passage.newest_start[:, -1]
        lengths = torch.where(began < 0, self.lengths + read, read - began).clamp(max=self.reach.memory)
        seen = torch.where(began < 0, self.seen + read, read - began)
        pairs = zip(self.rows, fresh, strict=True)
        size = int(lengths.max())
        if passage.lengths is None:
            rows = tuple(
                torch.cat([last(old, size - passage.size), last(new.detach(), size)], 1) for old, new in pairs
            )
        else:
            place = _newest_before_padding(self.size + read, size).to(self.rows[0].device)
            lane = torch.arange(self.lanes, device=place.device)[:, None]
            rows = tuple(torch.cat([old, new.detach()], 1)[lane, place] for old, new in pairs)
        return replace(self, rows=rows, lengths=lengths, seen=seen)

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
        return replace(self, rows=rows, lengths=lengths, seen=self.seen[chosen])

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
        return replace(
            first, rows=rows, lengths=lengths, seen=torch.cat([memory.seen for memory in memories])
        )

    def renewed(self, lanes: Tensor, fresh: Self) -> Self:
        """The lanes marked in `lanes` (B,) taken from `fresh`, the others from here."""
        both = self.join([self, fresh])
        return both.select(torch.arange(self.lanes, device=HOST) + self.lanes * lanes)

    def resized(self, reach: Reach) -> Self:
        """The same memory, read on with another reach. What has fallen off does not come back."""
        rows = tuple(last(row, reach.memory) for row in self.rows)
        return replace(self, rows=rows, lengths=self.lengths.clamp(max=reach.memory), reach=reach)

    def to(self, device: torch.device | str) -> Self:
        return replace(self, rows=tuple(row.to(device) for row in self.rows))

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the reach, by name, for a checkpoint."""
        rows = {
            f"rows.{layer}": row.clone() for layer, row in enumerate(self.rows)
        }  # none shares another's storage
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
    def states(self) -> tuple[Tensor, ...]:
        return self.rows


class ProjectedMemory(Memory):
    """The keys and values that each layer made of its inputs, (B, M, 2, H, D): right while the weights stand still."""


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
    return [memory.rows, memory.lengths, memory.seen], memory.reach


def _register(kind: type[Memory]) -> None:
    """Make the memory a pytree, so that torch can walk through it."""

    def put_together(parts: Iterable[Any], reach: Any) -> Memory:
        rows, lengths, seen = parts
        return kind(rows, lengths, seen, reach)

    register_pytree_node(kind, _taken_apart, put_together)


_register(StateMemory)
_register(ProjectedMemory)
