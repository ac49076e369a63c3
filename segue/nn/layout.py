"""The layout of a segment: where documents begin in each lane, and where padding begins.

Letters: B lanes, T tokens in the segment.
It is computed on the CPU, so that looking at it never waits for a GPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.errors import InputError

HOST = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class SegmentLayout:
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

    def without_first(self) -> "SegmentLayout":
        """The same layout without starts at the first token: those lanes have got a fresh memory."""
        if self.starts is None:
            return self
        later = self.starts.clone()
        later[:, 0] = False
        return SegmentLayout(self.lanes, self.size, later if later.any() else None, self.lengths)


def checked_layout(tokens: Tensor, starts: Tensor | None, lengths: Tensor | None) -> SegmentLayout:
    """Refuse what cannot be read, before any work is done. (Token ids are checked where data enters.)"""
    if not isinstance(tokens, Tensor):
        raise InputError(f"tokens should be a tensor of shape (lanes, length); found {type(tokens).__name__}")
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"tokens should be int64 or int32 of shape (lanes, length); "
            f"found {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    lanes, size = tokens.shape
    if size == 0:
        raise InputError("the segment is empty (T = 0); read at least one token, or skip the call")
    if lanes == 0:
        raise InputError("the segment has no lanes (B = 0); read at least one, or skip the call")
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
    return SegmentLayout(lanes, size, starts, lengths)


def _checked_lengths(lengths: Tensor, lanes: int, size: int) -> Tensor:
    lengths = torch.as_tensor(lengths)
    kind = lengths.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool or lengths.shape != (lanes,):
        raise InputError(
            f"lengths should be {lanes} integers, one for each lane; "
            f"found {lengths.dtype} of shape {tuple(lengths.shape)}"
        )
    lengths = lengths.to(HOST, torch.int64)
    if int(lengths.min()) < 0 or int(lengths.max()) > size:
        raise InputError(f"lengths should lie between 0 and {size}, the segment's; found {lengths.tolist()}")
    return lengths


def positions(layout: SegmentLayout, before: Tensor) -> Tensor:
    """(B, T) Where each token stands in its document, after the `before` (B,) it had already; 0 in padding."""
    steps, newest = torch.arange(layout.size, device=HOST), layout.newest_start
    standing = torch.where(newest < 0, steps + before[:, None], steps - newest)
    return standing if layout.padded is None else standing.masked_fill(layout.padded, 0)
