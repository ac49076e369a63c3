"""Causal kernel attention in chunks: pairs within a chunk, and a state for all that was read before it.

Letters: B lanes, T tokens in the segment, t tokens of a chunk, H heads, D head width, F features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.nn.layout import HOST, SegmentLayout

CHUNK = 64
"""Tokens that are compared pair by pair; longer segments are read in chunks, which carry the state on."""


@dataclass(frozen=True, eq=False)
class ChunkMask:
    """Which tokens of a chunk see each other and what was read before."""

    begin: int
    end: int
    real: Tensor  # (B, t): no padding
    visible: Tensor  # (B, t, t)
    onward: Tensor  # (B, t): still in the document that the state is of
    remembered: Tensor  # (B, t): belongs to the next state
    carried: Tensor  # (B,): the state is added to


def chunk_mask(layout: SegmentLayout, begin: int, device: torch.device) -> ChunkMask:
    """The mask of the chunk that begins here."""
    end = min(begin + CHUNK, layout.size)
    chunk, size = slice(begin, end), end - begin
    real = torch.ones(layout.lanes, size, dtype=torch.bool, device=HOST)
    if layout.padded is not None:
        real = ~layout.padded[:, chunk]
    documents = torch.zeros(layout.lanes, size, dtype=torch.int64, device=HOST)
    if layout.starts is not None:
        documents = layout.starts[:, chunk].cumsum(dim=1)
    causal = torch.ones(size, size, dtype=torch.bool, device=HOST).tril_()
    same = documents[:, :, None] == documents[:, None]
    itself = torch.eye(size, dtype=torch.bool, device=HOST)  # padding too: nothing is divided by 0
    newest = documents[:, -1:]
    return ChunkMask(
        begin,
        end,
        real.to(device, non_blocking=True),
        visible=(causal & same & real[:, None] | itself).to(device, non_blocking=True),
        onward=(documents == 0).to(device, non_blocking=True),
        remembered=(real & (documents == newest)).to(device, non_blocking=True),
        carried=(newest[:, 0] == 0).to(device, non_blocking=True),
    )


def kernel_chunk(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor, mask: ChunkMask
) -> tuple[Tensor, Tensor]:
    """Attention of φ(q), φ(k) (B, t, H, F) and values (B, t, H, D + 1) with a state (B, H, F, D + 1).

    Returns (B, t, H, D) and the next state.
    """
    pairs = torch.einsum("bthf,bshf->bhts", query, key) * mask.visible[:, None]
    sums = torch.einsum("bhts,bshd->bthd", pairs, value)
    before = torch.einsum("bthf,bhfd->bthd", query, state)
    sums = sums + before * mask.onward[..., None, None]
    fresh = torch.einsum("bthf,bthd->bhfd", key * mask.remembered[..., None, None], value)
    norm = sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)  # if nothing is left of the keys, no NaN
    return sums[..., :-1] / norm, state * mask.carried[:, None, None, None] + fresh


def textbook_kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(T, D) Causal kernel attention of one head as printed: weights φ(q)·φ(k), normalised, over all pairs."""
    weights = (query @ key.T).tril()
    return weights @ value / weights.sum(dim=1, keepdim=True)


def chunk_masks(layout: SegmentLayout, device: torch.device) -> list[ChunkMask]:
    """The chunks of a segment."""
    return [chunk_mask(layout, begin, device) for begin in range(0, layout.size, CHUNK)]
