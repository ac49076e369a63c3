"""Performer: positive orthogonal random features, whose products estimate softmax's exp(q·k) (Choromanski 2021).

    φ(x) = exp(W x - |x|² / 2 - s)

The sums over keys carry a level s, the largest exponent of all keys so far: whatever it is, the normalisation takes it
away, and without it the exponentials of long or short keys would leave the range of floats.

Letters: B lanes, t tokens of a chunk, H heads, D head width, F features.
"""

import torch
from torch import Tensor

from segue.nn.kernel_chunk import ChunkMask, kernel_chunk

NOTHING = -1e30
"""The level of sums over no keys."""


def performer_exponents(vectors: Tensor, directions: Tensor) -> Tensor:
    """(…, F) The logarithms of the features of vectors (…, D): the mean of exp(x + y) over F estimates exp(x·y)."""
    return vectors @ directions.T - vectors.square().sum(dim=-1, keepdim=True) / 2


def performer_chunk(
    query: Tensor, exponents: Tensor, value: Tensor, state: Tensor, mask: ChunkMask
) -> tuple[Tensor, Tensor]:
    """`kernel_chunk` with the exponents of keys (B, t, H, F).

    The last row of a state (B, H, F + 1, D + 1) is its level. A key some 80 below the largest of its chunk
    counts nothing.
    """
    sums, level = state[:, :, :-1], state[:, :, -1, 0]
    level = level.masked_fill(sums[..., -1].sum(dim=-1) == 0, NOTHING)  # (B, H)
    hidden = ~(mask.real[..., None, None])
    newest = exponents.detach().masked_fill(hidden, NOTHING).amax(dim=(1, 3))
    higher = torch.maximum(level, newest)
    key = (exponents - higher[:, None, :, None]).masked_fill(hidden, NOTHING).exp()
    gathered, sums = kernel_chunk(query, key, value, sums * (level - higher).exp()[..., None, None], mask)
    row = higher[..., None, None].expand(*sums.shape[:2], 1, sums.size(-1))
    return gathered, torch.cat([sums, row], dim=2)


def orthogonal(directions: Tensor) -> Tensor:
    """(F, D) The Gaussian rows made orthogonal, D at a time; their lengths stay."""
    blocks = []
    for block in directions.split(directions.size(1)):
        basis, rest = torch.linalg.qr(block.T.double())
        basis = (
            basis * rest.diagonal().sign()
        )  # else LAPACK's choice of signs makes the rows no longer uniform
        blocks.append(basis.T * block.double().norm(dim=1, keepdim=True))
    return torch.cat(blocks).to(directions.dtype)
