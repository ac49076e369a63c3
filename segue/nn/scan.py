"""A linear recurrence over time, element by element: c_t = f_t c_{t-1} + u_t. What makes a QRNN recurrent.

Letters: B lanes, T tokens, C width. Time comes first.
"""

from typing import Any

import torch
from torch import Tensor


def textbook_scan(decay: Tensor, fresh: Tensor, before: Tensor) -> Tensor:
    """(T, B, C) The states after each token, from f and u (T, B, C) and the state before the first (B, C)."""
    states, state = [], before
    for kept, added in zip(decay, fresh, strict=True):
        state = kept * state + added
        states.append(state)
    return torch.stack(states)


def scan(decay: Tensor, fresh: Tensor, before: Tensor) -> Tensor:
    """The textbook's, with one operation for each token, and of autograd one step for all of them."""
    states: Tensor = _Scanned.apply(decay, fresh, before)
    return states


class _Scanned(torch.autograd.Function):
    """The backward pass is the recurrence from the end: c_t's slope is its own, plus f_{t+1} times that of c_{t+1}."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, fresh: Tensor, before: Tensor) -> Tensor:
        states, state = torch.empty_like(fresh, memory_format=torch.contiguous_format), before
        for kept, added, after in zip(decay, fresh, states, strict=True):
            state = torch.addcmul(added, kept, state, out=after)
        ctx.save_for_backward(decay, states, before)
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, states, before = ctx.saved_tensors
        slopes = gradient.clone(memory_format=torch.contiguous_format)
        for token in range(len(slopes) - 1, 0, -1):
            slopes[token - 1].addcmul_(decay[token], slopes[token])
        to_decay = slopes * torch.cat([before[None], states[:-1]])
        return to_decay, slopes, decay[0] * slopes[0]
