"""B contiguous streams, read side by side and in order.

The split is a ring. Lane b begins b/B of the way round, and all lanes move on together: one integer, the tokens that
each has read, says where they all are, in whichever epoch. Where the ring closes, a document begins.
Letters: B lanes, T tokens in the segment.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.errors import InputError
from segue.text.corpus import Stream


@dataclass(frozen=True, eq=False)
class Segment:
    """What is read at once, and what is predicted: the same places moved by one."""

    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    starts: Tensor | None = None  # (B, T): a document begins here
    lengths: Tensor | None = None  # (B,): what follows is padding


@dataclass(frozen=True, eq=False)
class Lanes:
    """A split in B lanes."""

    stream: Stream
    lanes: int
    documents: bool = True  # mark where they begin, so that nothing is seen across
    some: range | None = None  # only these of the lanes are read

    def __post_init__(self) -> None:
        if len(self.stream.ids) // self.lanes < 2:
            raise InputError(
                f"{len(self.stream.ids)} tokens are too few for {self.lanes} lanes; use fewer lanes or more text"
            )

    @property
    def epoch(self) -> int:
        """Tokens that each lane reads until all together have read the split once."""
        return len(self.stream.ids) // self.lanes

    def segment(self, position: int, length: int) -> Segment:
        """The next `length` tokens of each lane after the first `position`."""
        size = len(self.stream.ids)
        if length > self.epoch:
            raise InputError(
                f"a segment of {length} tokens is longer than a lane of {self.epoch}; "
                "use shorter segments, fewer lanes or more text"
            )
        read = np.array(range(self.lanes) if self.some is None else self.some)
        begins = (read * size // self.lanes + position) % size
        places = (begins[:, None] + np.arange(length + 1)) % size
        tokens = torch.from_numpy(self.stream.ids[places].astype(np.int64))
        starts = torch.from_numpy(self.stream.begins(places[:, :-1])) if self.documents else None
        if starts is not None and not starts.any():
            starts = None
        return Segment(tokens[:, :-1], tokens[:, 1:], starts)
