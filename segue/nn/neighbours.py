"""Heads that begin by attending to neighbours: a start for encoders that are pre-trained for minutes, not weeks.

A masked token knows nothing of itself. Its attention begins uniform, so that the words beside it count as little as
those far away, and the loss stays near that of word frequencies until some head has found its neighbours. Here
some heads of the first layer begin with them (as ConViT's begin with a convolution); training is free to change that.

Letters: P positions, C width, D head width, F = D / 2 frequencies.
"""

import math

import torch
from torch import Tensor, nn

from segue.nn.attention import Attention

PEAK = 8.0
"""Score of the neighbour before the softmax, where other tokens have about 0: e⁸ is far above the number of tokens."""


def neighbour_offsets(count: int) -> list[int]:
    """How far back the heads look: 1, -1, 2, -2, …"""
    return [(head // 2 + 1) * (-1) ** head for head in range(count)]


@torch.no_grad()
def begin_with_neighbours(places: nn.Embedding, attention: Attention, count: int, size: float) -> None:
    """Let the first `count` heads begin with attention to neighbours; `size` is the words' standard deviation.

    The first D columns of the position table become sines and cosines, as long as a word's vector is. Their dot
    product has one peak, at equal positions; a head's query is the same row, rotated to the position it looks at.
    """
    positions, width = places.weight.shape
    inner, device = attention.query.weight.size(0) // attention.heads, places.weight.device
    frequencies = math.pi * (torch.arange(inner // 2, device=device) + 0.5) / (inner // 2)
    angles = torch.arange(positions, device=device)[:, None] * frequencies
    places.weight.zero_()
    places.weight[:, :inner] = size * math.sqrt(2 * width / inner) * _pairs(angles.sin(), angles.cos())
    gain = math.sqrt(2 * PEAK * math.sqrt(inner) / width)
    for head, offset in enumerate(neighbour_offsets(count)):
        rows = slice(head * inner, (head + 1) * inner)
        for weight, rotation in (
            (attention.query.weight, _rotation(offset * frequencies)),
            (attention.key_value.weight, torch.eye(inner, device=device)),
        ):
            weight[rows] = 0.0
            weight[rows, :inner] = gain * rotation


def _pairs(sines: Tensor, cosines: Tensor) -> Tensor:
    """(P, 2F) A sine and a cosine of every frequency in turn."""
    return torch.stack([sines, cosines], dim=-1).flatten(-2)


def _rotation(angles: Tensor) -> Tensor:
    """(D, D) The matrix that turns each pair (sin a, cos a) into that of a smaller angle, a minus the given one."""
    sines, cosines = angles.sin(), angles.cos()
    across = torch.diag(_pairs(-sines, torch.zeros_like(sines))[:-1], 1)
    return torch.diag(_pairs(cosines, cosines)) + across - across.mT
