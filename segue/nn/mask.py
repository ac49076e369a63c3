"""The attention mask: which keys each query sees.

Letters: B lanes, T queries, M keys held in memory, S = M + T keys. t and W: some of the queries and of the keys.
It is computed on the host, so that looking at it never makes a GPU wait; only its tensors go to the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from segue.nn.layout import HOST, SegmentLayout, positions
from segue.nn.memory import Memory
from segue.nn.patterns import BlockGrid, Pattern
from segue.nn.pinned import PinnedKeys, pinned_keys


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """Which keys each of T queries sees: of memory and segment, S = M + T; or, if not causal, of S = M.

    A causal query sees itself and what lies before it in its own document, at most `span` keys in all. One that is not
    causal sees all keys, or those at most `window` / 2 away. A causal or windowed query always sees itself, so no row
    is empty and no softmax NaN, whatever is padded. Nothing here is as large as T × S.
    """

    held: int  # M rows of memory lie before the segment
    size: int  # T
    span: int | None = None
    documents: Tensor | None = None  # (B, S): the document of each key, -1 for none; None if all are of one
    padding: Tensor | None = None  # (B, 1, T, S), a view of (B, 1, 1, S): True where a key is masked
    causal: bool = True  # if False, the keys are the M held ones, of what lies ahead too
    window: int | None = (
        None  # if not causal, with T = S: keys that a query sees besides itself, on both sides
    )
    global_tokens: int = 0  # with a window: the first tokens, which see all and are seen by all
    nearest: int = 0  # keys at a smaller distance are masked: 1 leaves out the query itself
    pattern: Pattern | None = None  # of sparse attention
    grid: BlockGrid | None = None  # the places of keys, which the fixed pattern needs
    pinned: PinnedKeys | None = None  # seen besides

    @property
    def keys(self) -> int:
        """S"""
        return self.held + self.size if self.causal else self.held

    @property
    def padded_keys(self) -> Tensor | None:
        """(B, S) True where a key is padding, the same for all queries; None if nowhere."""
        return None if self.padding is None else self.padding[:, 0, 0]

    def masked(self, queries: slice, keys: slice, device: torch.device = HOST) -> Tensor | None:
        """(B, 1 or H, t, W) For some queries and keys: True where documents differ or the pattern has a gap.

        None if nowhere. Neither causality, span nor window are part of it.
        """
        if self.padding is not None:
            padded = self.padding[:, :, queries, keys]
            return padded if self.window is None else padded & (_distances(queries, keys, padded.device) != 0)
        masked = None if self.pattern is None else ~self._in_pattern(self.pattern, queries, keys, device)
        if self.documents is None:
            return masked
        asking = self.documents[:, self.held :][:, queries, None]
        others = (asking != self.documents[:, None, keys])[:, None]
        return others if masked is None else masked | others

    def _in_pattern(self, pattern: Pattern, queries: slice, keys: slice, device: torch.device) -> Tensor:
        places = torch.arange(self.keys, device=device)
        distance = places[self.held :][queries, None] - places[keys]
        if self.grid is None:
            return pattern.visible(distance, None, None)
        places = self.grid.places.to(device, non_blocking=True)
        return pattern.visible(distance, places[:, self.held :][:, queries], places[:, keys])

    def in_window(self, queries: slice, keys: slice, device: torch.device) -> Tensor:
        """(t, W) True where a key lies in its query's window, or one of them is a global token."""
        assert self.window is not None
        near = _distances(queries, keys, device).abs() <= self.window // 2
        if not self.global_tokens:
            return near
        asking, seen = (torch.arange(one.start, one.stop, device=device) for one in (queries, keys))
        return near | (asking < self.global_tokens)[:, None] | (seen < self.global_tokens)

    def part(self, queries: slice, keys: slice) -> "AttentionMask":
        """The mask of some queries over some keys, up to the last query's own."""
        assert self.causal
        assert self.pattern is None
        return replace(
            self,
            held=self.held + queries.start - keys.start,
            size=queries.stop - queries.start,
            documents=None if self.documents is None else self.documents[:, keys],
            padding=None if self.padding is None else self.padding[:, :, queries, keys],
        )

    def dense(self, device: torch.device) -> Tensor:
        """(T, S), or (B, 1 or H, T, S) where lanes or heads differ: the whole mask, True where a key is visible."""
        places = torch.arange(self.keys, device=device)
        distance = (torch.arange(self.size, device=device) + self.held)[:, None] - places
        visible = distance >= self.nearest if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.span is not None:
            visible = visible & (distance < self.span)
        if self.window is not None:
            visible = visible & self.in_window(slice(0, self.size), slice(0, self.keys), device)
        masked = self.masked(slice(0, self.size), slice(0, self.keys), device)
        visible = visible if masked is None else visible & ~masked
        return visible if self.pinned is None else visible | self.pinned.dense()


def _distances(queries: slice, keys: slice, device: torch.device) -> Tensor:
    """(t, W) How far each key lies before each query."""
    asking = torch.arange(queries.start, queries.stop, device=device)
    return asking[:, None] - torch.arange(keys.start, keys.stop, device=device)


def causal_mask(
    layout: SegmentLayout, held: int, lengths: Tensor, span: int | None, device: torch.device
) -> AttentionMask:
    """The mask of a segment over memory and itself; the newest `lengths` (B,) rows of memory are each lane's own."""
    documents = _documents(layout, held, lengths)
    return AttentionMask(
        held, layout.size, span, None if documents is None else documents.to(device, non_blocking=True)
    )


def _documents(layout: SegmentLayout, held: int, lengths: Tensor) -> Tensor | None:
    """(B, S) The document of each key; None if all are of one."""
    if layout.starts is None and int(lengths.min()) == held:
        return None
    remembered = torch.where(torch.arange(held, device=HOST) < held - lengths[:, None], -1, 0)
    starts = layout.starts
    here = remembered.new_zeros(layout.lanes, layout.size) if starts is None else starts.cumsum(dim=1)
    return torch.cat([remembered, here], dim=1)  # 0 is the document that memory belongs to


def layer_masks(
    layout: SegmentLayout, memory: Memory, patterns: Sequence[Pattern | None], device: torch.device
) -> list[AttentionMask]:
    """The mask of each layer, for a segment that is read on from a memory. Layers of one pattern share theirs."""
    held = memory.size
    if memory.reach.pinned:
        assert patterns[0] is None
        return [_pinning_mask(layout, memory, device)] * len(patterns)
    mask = causal_mask(layout, held, memory.lengths, memory.reach.span, device)
    pattern, grid = patterns[0], None
    if pattern is not None and pattern.kind == "fixed":
        before = memory.seen if memory.reach.positions == "onward" else torch.zeros_like(memory.seen)
        here = positions(
            replace(layout, lengths=None), before
        )  # padding counts on, so that no two share a place
        places = torch.cat([before[:, None] - held + torch.arange(held, device=HOST), here], dim=1)
        grid = BlockGrid(places, _documents(layout, held, memory.lengths), held, pattern.stride, device)
    masks = {pattern: replace(mask, pattern=pattern, grid=grid) for pattern in set(patterns)}
    return [masks[pattern] for pattern in patterns]


def _pinning_mask(layout: SegmentLayout, memory: Memory, device: torch.device) -> AttentionMask:
    """The mask where the first rows of documents are pinned. Those before a gap are not among the other keys."""
    held, reach = memory.size, memory.reach
    documents = _documents(layout, held, memory.lengths)
    numbers = torch.arange(held, device=HOST) + memory.seen[:, None] - held
    here = positions(replace(layout, lengths=None), memory.seen)
    apart = torch.cat([memory.places != numbers, torch.zeros_like(here, dtype=torch.bool)], dim=1)
    places = torch.cat([memory.places, here], dim=1)
    owners = torch.zeros_like(places) if documents is None else documents
    pinned = pinned_keys(places, owners, apart, reach.pinned, held, reach.span, device)
    if bool(apart.any()):
        documents = owners.masked_fill(apart, -1)
    on_device = None if documents is None else documents.to(device, non_blocking=True)
    return AttentionMask(held, layout.size, reach.span, on_device, pinned=pinned)


def whole_mask(layout: SegmentLayout, device: torch.device) -> AttentionMask:
    """Every token of a source attends to all but padding. An empty source attends to its padding, which is zero."""
    padding = None
    if layout.padded is not None and layout.padded.any():
        empty = layout.counts == 0
        padding = (layout.padded & ~empty[:, None]).to(device, non_blocking=True)[:, None, None]
    return same_padding(AttentionMask(layout.size, layout.size, padding=padding, causal=False))


def same_padding(mask: AttentionMask) -> AttentionMask:
    """The same padding mask for every query."""
    if mask.padding is None:
        return mask
    return replace(mask, padding=mask.padding[:, :, :1].expand(-1, -1, mask.size, -1))
