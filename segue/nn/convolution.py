"""Causal convolution: an output is a sum over taps of earlier inputs, whose weights do not depend on the place.

    y_t = Σ_j W_j x_{t - (k-1-j) d} + b         j = 0 … k-1

Letters: B lanes, T tokens in the segment, M = (k-1) d inputs before it, S = M + T, C inputs' width, O outputs' width,
k taps (kernel), d dilation. Time comes first.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.nn.attention import casting
from segue.nn.filter_memory import newest_rows
from segue.nn.layout import HOST, SegmentLayout
from segue.nn.memory import padded_to
from segue.nn.tracing import tracing


def textbook_convolution(
    joined: Tensor, weight: Tensor, dilation: int, visible: Tensor | None = None
) -> Tensor:
    """(T, B, O) The sum as printed, of inputs (S, B, C) and a weight (O, k, C).

    `visible` (k, T, B) tells which taps are in the token's own document; the others are zero.
    """
    kernel = weight.size(1)
    size = joined.size(0) - (kernel - 1) * dilation
    outputs = joined.new_zeros(size, joined.size(1), len(weight))
    for tap in range(kernel):
        inputs = joined[tap * dilation : tap * dilation + size]
        if visible is not None:
            inputs = inputs * visible[tap, ..., None]
        outputs = outputs + inputs @ weight[:, tap].T
    return outputs


def convolve(joined: Tensor, weight: Tensor, dilation: int, visible: Tensor | None = None) -> Tensor:
    """The textbook's, without a copy for any tap: each is a product of rows where they lie, added in place."""
    if casting(joined):
        kind = torch.get_autocast_dtype(joined.device.type)
        joined, weight = joined.to(kind), weight.to(kind)
    if tracing():
        return textbook_convolution(joined, weight, dilation, visible)
    outputs: Tensor = _Convolved.apply(joined.contiguous(), weight, dilation, visible)
    return outputs


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor, weight: Tensor, dilation: int, visible: Tensor | None) -> Tensor:
        ctx.save_for_backward(joined, weight, visible)
        ctx.dilation = dilation
        first, *others = _taps(joined, weight, dilation, visible)
        outputs = first[1] @ weight[:, 0].T
        for tap, (_, rows, _) in enumerate(others, start=1):
            outputs.addmm_(rows, weight[:, tap].T)
        return outputs.view(-1, joined.size(1), len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        joined, weight, visible = ctx.saved_tensors
        slopes = gradient.reshape(-1, len(weight))
        to_weight, to_joined = torch.empty_like(weight), torch.zeros_like(joined).flatten(0, 1)
        for tap, (place, rows, seen) in enumerate(_taps(joined, weight, ctx.dilation, visible)):
            to_weight[:, tap] = slopes.T @ rows
            if seen is None:
                to_joined[place].addmm_(slopes, weight[:, tap])
            else:
                to_joined[place].addcmul_(slopes @ weight[:, tap], seen)
        return to_joined.view(joined.shape), to_weight, None, None


def _taps(
    joined: Tensor, weight: Tensor, dilation: int, visible: Tensor | None
) -> list[tuple[slice, Tensor, Tensor | None]]:
    """For each tap, its place among the S B rows, the rows (T B, C), and which of them are seen (T B, 1)."""
    kernel, lanes = weight.size(1), joined.size(1)
    rows, count = joined.flatten(0, 1), (len(joined) - (kernel - 1) * dilation) * lanes
    taps: list[tuple[slice, Tensor, Tensor | None]] = []
    for tap in range(kernel):
        place = slice(tap * dilation * lanes, tap * dilation * lanes + count)
        seen = None if visible is None else visible[tap].reshape(count, 1).to(rows.dtype)
        taps.append((place, rows[place] if seen is None else rows[place] * seen, seen))
    return taps


@dataclass(frozen=True, eq=False)
class Boundaries:
    """Where the documents of a segment begin, as convolutions and scans need it."""

    layout: SegmentLayout
    device: torch.device
    _visible: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def visible(self, kernel: int, dilation: int) -> Tensor | None:
        """(k, T, B) Whether a tap lies in the document of its token; None if no document begins here."""
        if self.layout.starts is None:
            return None
        if (kernel, dilation) not in self._visible:
            back = torch.arange(kernel - 1, -1, -1, device=HOST)[:, None, None] * dilation
            newest = self.layout.newest_start.T
            here = torch.arange(self.layout.size, device=HOST)[:, None]
            seen = (newest < 0) | (here - back >= newest)
            self._visible[kernel, dilation] = seen.to(self.device, non_blocking=True)
        return self._visible[kernel, dilation]

    @property
    def goes_on(self) -> Tensor | None:
        """(T, B, 1) Whether a token continues its document; None if all do."""
        return (
            None
            if self.layout.starts is None
            else ~self.layout.starts.T[..., None].to(self.device, non_blocking=True)
        )


class Convolution(nn.Module):
    """A causal convolution that reads on: the last M inputs are its memory.

    If `normed`, it has the weight norm of Salimans 2016: a filter is a direction and a learned length, W = g v / |v|.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int, *, normed: bool) -> None:
        super().__init__()
        self.inputs, self.kernel, self.dilation, self.normed = inputs, kernel, dilation, normed
        self.filters = nn.Parameter(torch.empty(outputs, kernel * inputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        if normed:
            self.gain = nn.Parameter(torch.empty(outputs))
        self.folded: Tensor | None = None  # the weight itself, where it does not change any more

    @property
    def rows(self) -> int:
        """M"""
        return (self.kernel - 1) * self.dilation

    @torch.no_grad()
    def reset(self, length: float) -> None:
        """Draw filters of this length. (The gain must say so too: weight norm undoes the length of what is drawn.)"""
        nn.init.normal_(self.filters, 0.0, length * (self.kernel * self.inputs) ** -0.5)
        nn.init.constant_(self.bias, 0.0)
        if self.normed:
            nn.init.constant_(self.gain, length)

    def weight(self) -> Tensor:
        """(O, k, C)"""
        if self.folded is not None:
            return self.folded
        filters: Tensor = self.filters
        if self.normed:
            filters = F.normalize(filters, dim=1) * self.gain[:, None]
        return filters.view(len(filters), self.kernel, self.inputs)

    def forward(self, inputs: Tensor, past: Tensor, boundaries: Boundaries) -> tuple[Tensor, Tensor]:
        """Outputs (T, B, O) of inputs (T, B, C) and memory (B, M, C), and the memory after them."""
        before = padded_to(past, self.rows).transpose(0, 1).to(inputs.dtype)
        joined = torch.cat([before.detach(), inputs])
        visible = boundaries.visible(self.kernel, self.dilation)
        outputs = convolve(joined, self.weight(), self.dilation, visible) + self.bias
        return outputs, newest_rows(joined, self.rows, boundaries.layout)
