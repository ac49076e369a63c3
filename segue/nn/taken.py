"""Rows taken at an index, with a backward pass that is a copy too, because each row is taken once at most."""

from typing import Any

import torch
from torch import Tensor

Index = tuple[Tensor, ...]
"""Where to take each row from: its first tensor has -1 for nowhere, the others say which lane, and which head."""


class Taken(torch.autograd.Function):
    """Rows at an index (any row at -1). The inverse index says where each row went, -1 if nowhere."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Index, inverse: Index) -> Tensor:
        ctx.inverse = inverse
        where, *others = index
        return rows[(where.clamp(min=0), *others)].contiguous()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        where, *others = ctx.inverse
        taken = gradient[(where.clamp(min=0), *others)]
        nowhere = (where < 0).view(*where.shape, *[1] * (taken.dim() - where.dim()))
        return taken.masked_fill_(nowhere, 0), None, None
