"""A segment as its lanes see it: where documents begin, where padding begins, who may look at whom.

Letters: B lanes, T tokens in the segment, M states in memory, S = M + T keys.
All of this is counted on the host, so that looking at it never makes a GPU wait; only the mask goes to the device.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from segue.errors import InputError

HOST = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Passage:
    """T tokens in each of B lanes."""

    lanes: int
    size: int
    starts: Tensor | None = None  # (B, T): a document begins here; None: nowhere
    lengths: Tensor | None = None  # (B,): what follows is padding; None: all lanes are full

    @property
    def counts(self) -> Tensor:
        """(B,) How many tokens each lane really reads."""
        return torch.full((self.lanes,), self.size, device=HOST) if self.lengths is None else self.lengths

    @property
    def padded(self) -> Tensor | None:
        """(B, T) Which places hold no token."""
        return None if self.lengths is None else torch.arange(self.size, device=HOST) >= self.lengths[:, None]

    @property
    def newest_start(self) -> Tensor:
        """(B, T) The place of the newest start up to each token; -1 where there was none."""
        if self.starts is None:
            return torch.full((self.lanes, self.size), -1, device=HOST)
        places = torch.where(self.starts, torch.arange(self.size, device=HOST), -1)
        return places.cummax(dim=1).values

    def without_first(self) -> "Passage":
        """The same passage after the lanes that begin with a new document got a new memory."""
        if self.starts is None:
            return self
        later = self.starts.clone()
        later[:, 0] = False
        return Passage(self.lanes, self.size, later if later.any() else None, self.lengths)


def checked_passage(tokens: Tensor, starts: Tensor | None, lengths: Tensor | None) -> Passage:
    """Refuse what cannot be read, before any work is done. (Token ids are checked where data enters.)"""
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"tokens should be int64 or int32 of shape (lanes, length); "
            f"found {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    lanes, size = tokens.shape
    if size == 0:
        raise InputError("the segment is empty (T = 0); read at least one token, or skip the call")
    if lengths is not None:
        lengths = _checked_lengths(lengths, lanes, size)
    if starts is not None:
        if starts.dtype != torch.bool or starts.shape != tokens.shape:
            raise InputError(
                f"starts should be bool of the tokens' shape {tuple(tokens.shape)}; "
                f"found {starts.dtype} of shape {tuple(starts.shape)}"
            )
        starts = starts.to(HOST)
        if lengths is not None:
            starts = starts & (torch.arange(size, device=HOST) < lengths[:, None])
        starts = starts if starts.any() else None
    return Passage(lanes, size, starts, lengths)


def _checked_lengths(lengths: Tensor, lanes: int, size: int) -> Tensor:
    if lengths.dtype.is_floating_point or lengths.dtype == torch.bool or lengths.shape != (lanes,):
        raise InputError(
            f"lengths should be {lanes} integers, one for each lane; "
            f"found {lengths.dtype} of shape {tuple(lengths.shape)}"
        )
    lengths = lengths.to(HOST, torch.int64)
    if int(lengths.min()) < 0 or int(lengths.max()) > size:
        raise InputError(f"lengths should lie between 0 and {size}, the segment's; found {lengths.tolist()}")
    return lengths


@dataclass(frozen=True, eq=False)
class Sight:
    """Which keys each of T queries sees: of memory and segment, S = M + T; or, if not causal, all of S = M.

    A causal query sees itself and what lies before it in its own document, at most `span` keys in all. It always sees
    itself, so no row is empty and no softmax NaN, whatever is padded. Nothing here is as large as T × S.
    """

    held: int  # M rows of memory lie before the segment
    size: int  # T
    span: int | None = None
    documents: Tensor | None = None  # (B, S): whose each key is, -1 nobody's; None if all are one document's
    foreign: Tensor | None = None  # (B, 1, T, S), a view of (B, 1, 1, S): keys that are not to be seen
    causal: bool = True  # else the keys are the M held alone, and every query sees all of them

    @property
    def keys(self) -> int:
        """S"""
        return self.held + self.size if self.causal else self.held

    def unseen(self, queries: slice, keys: slice) -> Tensor | None:
        """(B, 1, t, W) Of some queries and keys, those that do not belong together; None if all do."""
        if self.foreign is not None:
            return self.foreign[:, :, queries, keys]
        if self.documents is None:
            return None
        asking = self.documents[:, self.held :][:, queries, None]
        return (asking != self.documents[:, None, keys])[:, None]

    def part(self, queries: slice, keys: slice) -> "Sight":
        """What some queries see if they are given only some keys, up to their own."""
        assert self.causal
        return replace(
            self,
            held=self.held + queries.start - keys.start,
            size=queries.stop - queries.start,
            documents=None if self.documents is None else self.documents[:, keys],
            foreign=None if self.foreign is None else self.foreign[:, :, queries, keys],
        )

    def mask(self, device: torch.device) -> Tensor:
        """(T, S), or (B, 1, T, S) where lanes differ: all of it at once."""
        places = torch.arange(self.keys, device=device)
        distance = (torch.arange(self.size, device=device) + self.held)[:, None] - places
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.span is not None:
            seen &= distance < self.span
        unseen = self.unseen(slice(0, self.size), slice(0, self.keys))
        return seen if unseen is None else seen & ~unseen


def sight(passage: Passage, held: int, lengths: Tensor, span: int | None, device: torch.device) -> Sight:
    """What the queries of a passage see of it and of memory, whose newest `lengths` (B,) rows belong to each lane."""
    if passage.starts is None and int(lengths.min()) == held:
        return Sight(held, passage.size, span)
    remembered = torch.where(torch.arange(held, device=HOST) < held - lengths[:, None], -1, 0)
    starts = passage.starts
    here = remembered.new_zeros(passage.lanes, passage.size) if starts is None else starts.cumsum(dim=1)
    # 0 is the document that memory belongs to
    return Sight(held, passage.size, span, torch.cat([remembered, here], dim=1).to(device))


def positions(passage: Passage, before: Tensor) -> Tensor:
    """(B, T) Where each token stands in its document, after the `before` (B,) it had already; 0 in padding."""
    steps, newest = torch.arange(passage.size, device=HOST), passage.newest_start
    standing = torch.where(newest < 0, steps + before[:, None], steps - newest)
    return standing if passage.padded is None else standing.masked_fill(passage.padded, 0)
