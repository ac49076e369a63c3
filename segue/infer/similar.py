"""Nearest texts by the cosine of their vectors, in blocks, so that no matrix of all pairs is held.

Letters: Q queries, B texts, C width.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 1024
"""Texts that are compared with all others at once."""


class Near(NamedTuple):
    """Two texts and the cosine of their vectors."""

    cosine: float
    first: int
    second: int


def nearest(queries: Tensor, vectors: Tensor, top: int) -> Iterator[list[Near]]:
    """For each query (Q, C) the `top` nearest of the vectors (B, C), the nearest first; ties by their order."""
    directions = F.normalize(vectors, dim=-1)
    for begin in range(0, len(queries), BLOCK):
        cosines = F.normalize(queries[begin : begin + BLOCK], dim=-1) @ directions.T
        best, places = cosines.sort(dim=1, descending=True, stable=True)
        for row in range(len(cosines)):
            pairs = zip(best[row, :top].tolist(), places[row, :top].tolist(), strict=True)
            yield [Near(cosine, begin + row, place) for cosine, place in pairs]


def closest_pairs(vectors: Tensor, top: int) -> list[Near]:
    """The `top` pairs of different texts (B, C) with the largest cosines, each pair once."""
    directions = F.normalize(vectors, dim=-1)
    kept: list[Near] = []
    for begin in range(0, len(directions), BLOCK):
        cosines = directions[begin : begin + BLOCK] @ directions[begin:].T
        cosines.masked_fill_(torch.ones_like(cosines, dtype=torch.bool).tril(), float("-inf"))
        best, places = cosines.flatten().topk(min(top, cosines.numel()))
        for cosine, place in zip(best.tolist(), places.tolist(), strict=True):
            if cosine > float("-inf"):
                first, second = divmod(place, cosines.size(1))
                kept.append(Near(cosine, begin + first, begin + second))
        kept = heapq.nsmallest(top, kept, key=lambda near: (-near.cosine, near.first, near.second))
    return kept
