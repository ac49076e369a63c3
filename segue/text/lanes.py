"""Lanes: a split as B contiguous streams that are read in parallel (the rows of a batch).

The split is a ring. Lane b starts b/B of the way round, and all lanes advance together: one integer, the tokens that
each lane has read, is the position of all of them, over all epochs. Where the ring closes, a document begins.
Letters: B lanes, T tokens in the segment.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segue.errors import InputError
from segue.text.corpus import Stream


@dataclass(frozen=True, eq=False)
class Segment:
    """The tokens that are read at once, and their targets: the same stream shifted by one."""

    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    starts: Tensor | None = None  # (B, T): whether a document begins here
    lengths: Tensor | None = None  # (B,): the tokens after are padding
    places: np.ndarray[Any, Any] | None = (
        None  # (B, T): where the tokens lie in the stream, if that was asked for
    )


@dataclass(frozen=True, eq=False)
class Lanes:
    """A split as B lanes."""

    stream: Stream
    lanes: int
    documents: bool = True  # mark where documents begin, so that attention does not cross them
    own: range | None = None  # read only these lanes: those of one rank

    def __post_init__(self) -> None:
        if len(self.stream.ids) // self.lanes < 2:
            raise InputError(
                f"{len(self.stream.ids)} tokens are too few for {self.lanes} lanes; use fewer lanes or more text"
            )

    @property
    def epoch(self) -> int:
        """The length of an epoch: tokens that each lane reads until all together have read the split."""
        return len(self.stream.ids) // self.lanes

    def segment(self, position: int, length: int) -> Segment:
        """The segment of `length` tokens of each lane that starts at `position`."""
        size = len(self.stream.ids)
        if length > self.epoch:
            raise InputError(
                f"a segment of {length} tokens is longer than a lane of {self.epoch}; "
                "use shorter segments, fewer lanes or more text"
            )
        read = np.array(range(self.lanes) if self.own is None else self.own)
        begins = (read * size // self.lanes + position) % size
        places = (begins[:, None] + np.arange(length + 1)) % size
        tokens = torch.from_numpy(self.stream.ids[places].astype(np.int64))
        starts = torch.from_numpy(self.stream.begins(places[:, :-1])) if self.documents else None
        if starts is not None and not starts.any():
            starts = None
        return Segment(tokens[:, :-1], tokens[:, 1:], starts)
