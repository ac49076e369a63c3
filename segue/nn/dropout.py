"""Dropout that draws 16 random bits for each element: several times as fast as torch's on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GRAINS = 2**16
"""Probabilities are rounded to 1 / GRAINS: a random word of 64 bits serves four elements."""


class Dropout(nn.Dropout):
    """As torch's: elements become zero with probability p, the others grow by 1 / (1 - p)."""

    def forward(self, given: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return given
        if given.device.type != "cpu" or round(self.p * GRAINS) in (0, GRAINS):
            return F.dropout(given, self.p)
        dropped: Tensor = _Dropped.apply(given, round(self.p * GRAINS))
        return dropped


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, grains: int) -> Tensor:
        words = torch.empty((given.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: given.numel()].view(given.shape)
        kept = draws >= grains - GRAINS // 2
        ctx.save_for_backward(kept)
        ctx.growth = GRAINS / (GRAINS - grains)
        return (given * kept).mul_(ctx.growth)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradient * kept).mul_(ctx.growth), None
