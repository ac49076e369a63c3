"""The attention mask: which keys each query sees.

Letters: B lanes, T queries, M keys held in memory, S = M + T keys. t and W: some of the queries and of the keys.
It is computed on the host, so that looking at it never makes a GPU wait; only its tensors go to the device.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from segue.nn.layout import HOST, SegmentLayout


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """Which keys each of T queries sees: of memory and segment, S = M + T; or, if not causal, all of S = M.

    A causal query sees itself and what lies before it in its own document, at most `span` keys in all. It always sees
    itself, so no row is empty and no softmax NaN, whatever is padded. Nothing here is as large as T × S.
    """

    held: int  # M rows of memory lie before the segment
    size: int  # T
    span: int | None = None
    documents: Tensor | None = None  # (B, S): the document of each key, -1 for none; None if all are of one
    padding: Tensor | None = None  # (B, 1, T, S), a view of (B, 1, 1, S): True where a key is masked
    causal: bool = True  # if False, the keys are the M held ones, and every query sees all of them

    @property
    def keys(self) -> int:
        """S"""
        return self.held + self.size if self.causal else self.held

    def masked(self, queries: slice, keys: slice) -> Tensor | None:
        """(B, 1, t, W) For some queries and keys: True where they are of different documents; None if nowhere."""
        if self.padding is not None:
            return self.padding[:, :, queries, keys]
        if self.documents is None:
            return None
        asking = self.documents[:, self.held :][:, queries, None]
        return (asking != self.documents[:, None, keys])[:, None]

    def part(self, queries: slice, keys: slice) -> "AttentionMask":
        """The mask of some queries over some keys, up to the last query's own."""
        assert self.causal
        return replace(
            self,
            held=self.held + queries.start - keys.start,
            size=queries.stop - queries.start,
            documents=None if self.documents is None else self.documents[:, keys],
            padding=None if self.padding is None else self.padding[:, :, queries, keys],
        )

    def dense(self, device: torch.device) -> Tensor:
        """(T, S), or (B, 1, T, S) where lanes differ: the whole mask, True where a key is visible."""
        places = torch.arange(self.keys, device=device)
        distance = (torch.arange(self.size, device=device) + self.held)[:, None] - places
        visible = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.span is not None:
            visible &= distance < self.span
        masked = self.masked(slice(0, self.size), slice(0, self.keys))
        return visible if masked is None else visible & ~masked


def causal_mask(
    layout: SegmentLayout, held: int, lengths: Tensor, span: int | None, device: torch.device
) -> AttentionMask:
    """The mask of a segment over memory and itself; the newest `lengths` (B,) rows of memory are each lane's own."""
    if layout.starts is None and int(lengths.min()) == held:
        return AttentionMask(held, layout.size, span)
    remembered = torch.where(torch.arange(held, device=HOST) < held - lengths[:, None], -1, 0)
    starts = layout.starts
    here = remembered.new_zeros(layout.lanes, layout.size) if starts is None else starts.cumsum(dim=1)
    # 0 is the document that memory belongs to
    return AttentionMask(held, layout.size, span, torch.cat([remembered, here], dim=1).to(device))
