"""The patterns of sparse attention (Child 2019): which keys a query sees, as the paper defines them.

With stride l and c summaries, the query in place i sees keys j <= i of two sets:

    strided    near: i - j < l              far: (i - j) mod l = 0
    fixed      near: j // l = i // l        far: j mod l is one of the c summary columns of the head

Every query also sees itself. Places are counted from the start of the document, so cuts make no difference.
`sparse.py` computes the same without looking at what is masked.

Letters: B lanes, H heads, t queries, W keys, S = M + T keys of memory and segment, G blocks.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from segue.config import UniversalConfig, XLConfig
from segue.nn.layout import HOST


@dataclass(frozen=True)
class Pattern:
    """A pattern, and which of its two sets the heads of a layer see."""

    kind: Literal["strided", "fixed"]
    stride: int  # l
    summary: int  # c, of `fixed`
    heads: int
    sees: Literal["both", "near", "far", "by-head"] = "both"  # by-head: the first half near, the others far

    @property
    def columns(self) -> list[int]:
        """The first summary column of each head. Heads take turns, from a block's last c columns to its first."""
        parts = self.stride // self.summary
        return [self.stride - self.summary * (1 + head % parts) for head in range(self.heads)]

    @property
    def halves(self) -> tuple["Pattern", "Pattern"]:
        """The patterns of a layer's near heads and of its far heads."""
        far = self.heads // 2
        return replace(self, heads=self.heads - far, sees="near"), replace(self, heads=far, sees="far")

    def visible(self, distance: Tensor, asking: Tensor | None, places: Tensor | None) -> Tensor:
        """(…, t, W) Whether keys at this distance (t, W) are seen: for each head (H, t, W), and for each lane too.

        `asking` (B, t) and `places` (B, W) are the places of queries and keys in their documents, which `fixed` needs.
        """
        if self.sees == "by-head":
            near, far = (half.visible(distance, asking, places) for half in self.halves)
            lanes = torch.broadcast_shapes(near.shape[:-3], far.shape[:-3])
            shapes = [(*lanes, half.heads, *distance.shape) for half in self.halves]
            both = zip((near, far), shapes, strict=True)
            return torch.cat([seen.expand(shape) for seen, shape in both], dim=-3)
        if self.kind == "strided":
            near, far = distance < self.stride, distance % self.stride == 0
        else:
            assert asking is not None
            assert places is not None
            near = (asking[:, None, :, None] // self.stride) == (places[:, None, None] // self.stride)
            first = torch.tensor(self.columns).to(places.device, non_blocking=True)[:, None, None]
            column = places[:, None, None] % self.stride - first
            far = (column >= 0) & (column < self.summary)
        sets = {"both": near | far, "near": near, "far": far}
        return sets[self.sees] | (distance == 0)


def layer_patterns(config: XLConfig | UniversalConfig) -> list[Pattern | None]:
    """The pattern of each layer; None for full attention."""
    if not isinstance(config, XLConfig) or config.pattern == "full":
        return [None] * config.layers
    pattern = Pattern(config.pattern, config.stride, config.summary, config.heads)
    if config.combine == "heads":
        return [replace(pattern, sees="by-head")] * config.layers
    if config.combine == "merged":
        return [pattern] * config.layers
    in_turn = replace(pattern, sees="near"), replace(pattern, sees="far")
    return [in_turn[layer % 2] for layer in range(config.layers)]


@dataclass(frozen=True, eq=False)
class BlockGrid:
    """The rows of memory and segment in blocks of l places, block edges where the document has them.

    Lanes may stand anywhere in their documents. On the grid they are aligned: a row's column is its place mod l, and
    the newest rows of all lanes are in the last block. A document begins with a new block. It is computed on the host,
    once for all layers.
    """

    places: Tensor  # (B, S)
    documents: Tensor | None  # (B, S), -1 for rows that are not the lane's own
    held: int  # M
    stride: int
    device: torch.device
    summaries: dict[tuple[int, ...], "Summaries"] = field(default_factory=dict)

    @cached_property
    def after(self) -> Tensor:
        """(B, S) How many blocks follow the row's own."""
        blocks = self.places.div(self.stride, rounding_mode="floor")
        edges = blocks[:, 1:] != blocks[:, :-1]
        if self.documents is not None:
            edges |= self.documents[:, 1:] != self.documents[:, :-1]
        zero = edges.new_zeros(len(edges), 1, dtype=torch.int64)
        return torch.cat([edges.flip(1).cumsum(1).flip(1), zero], dim=1)

    @cached_property
    def own(self) -> Tensor:
        """(B, S) The rows that belong to the lane."""
        return (
            torch.ones_like(self.places, dtype=torch.bool) if self.documents is None else self.documents >= 0
        )

    @cached_property
    def blocks(self) -> int:
        """G"""
        return int(self.after[self.own].max()) + 1

    @cached_property
    def query_blocks(self) -> int:
        """How many of the last blocks hold queries."""
        return int(self.after[:, self.held :].max()) + 1

    @cached_property
    def labels(self) -> Tensor:
        """(B, S) A number for each block, -1 for rows that are not the lane's own: on the device."""
        return self.after.masked_fill(~self.own, -1).to(self.device, non_blocking=True)

    @cached_property
    def slots(self) -> Tensor:
        """(B, S) The slot of each row, block by block; behind the last one for rows that are not the lane's own."""
        slots = (self.blocks - 1 - self.after) * self.stride + self.places % self.stride
        return slots.masked_fill(~self.own, self.blocks * self.stride)

    @cached_property
    def rows(self) -> Tensor:
        """(B, G l) The row in each slot, -1 if there is none."""
        lanes, keys = self.places.shape
        rows = torch.full((lanes, self.blocks * self.stride + 1), -1, device=HOST)
        rows.scatter_(1, self.slots, torch.arange(keys, device=HOST).expand(lanes, -1))
        return rows[:, :-1]

    @cached_property
    def block_documents(self) -> Tensor | None:
        """(B, G) The document of each block, -1 if it is empty; None if all are of one."""
        if self.documents is None:
            return None
        documents = torch.where(self.rows < 0, -1, self.documents.gather(1, self.rows.clamp(min=0)))
        by_block: Tensor = documents.unflatten(1, (self.blocks, -1))
        return by_block.amax(dim=2).to(self.device, non_blocking=True)

    @cached_property
    def query_rows(self) -> Tensor:
        """(g l, B) The query in each slot of the blocks that hold queries; -1 if there is none."""
        rows = self.rows[:, self.rows.size(1) - self.query_blocks * self.stride :]
        return (rows - self.held).clamp(min=-1).T.to(self.device, non_blocking=True)

    @cached_property
    def query_slots(self) -> Tensor:
        """(T, B) The slot of each query among those."""
        first = (self.blocks - self.query_blocks) * self.stride
        return (self.slots[:, self.held :] - first).T.to(self.device, non_blocking=True)

    def summary(self, pattern: Pattern) -> "Summaries":
        """The summary rows of a pattern's heads."""
        key = pattern.summary, *pattern.columns
        if key not in self.summaries:
            self.summaries[key] = self._summaries(pattern)
        return self.summaries[key]

    def _summaries(self, pattern: Pattern) -> "Summaries":
        first = torch.tensor(pattern.columns, device=HOST)  # (H,)
        columns = first[:, None] + torch.arange(pattern.summary, device=HOST)
        rows = self.rows.unflatten(1, (self.blocks, -1))[:, :, columns]  # (B, G, H, c)
        slots = self.slots[..., None]
        column = slots % self.stride - first
        inside = (column >= 0) & (column < pattern.summary) & (slots < self.blocks * self.stride)
        place = torch.where(inside, slots // self.stride * pattern.summary + column, -1)  # (B, S, H)
        empty = rows < 0
        return Summaries(
            rows.permute(1, 3, 0, 2).flatten(0, 1).to(self.device, non_blocking=True),
            place.transpose(0, 1).to(self.device, non_blocking=True),
            empty.transpose(1, 2).flatten(2).to(self.device, non_blocking=True)
            if bool(empty.any())
            else None,
        )


@dataclass(frozen=True, eq=False)
class Summaries:
    """Where the summary rows of all blocks are found, c of each block for each head."""

    rows: Tensor  # (G c, B, H) their rows; -1 where there is none
    places: Tensor  # (S, B, H) the opposite direction, -1 for rows that are no summaries
    empty: Tensor | None  # (B, H, G c) where there is none
