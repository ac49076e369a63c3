"""One layer of each kind that passes information along a sequence, with what its arithmetic says.

Layers map states (n, B, d) to states (n, B, d). Letters: n tokens of a sequence, B sequences, d width, k kernel.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from segue.config import ConvolutionLayer, XLConfig
from segue.nn.attention import Attention
from segue.nn.block import FeedForward
from segue.nn.convolution import Boundaries, Convolution
from segue.nn.convolutional import BLOCKS
from segue.nn.layout import SegmentLayout
from segue.nn.mask import AttentionMask
from segue.nn.recurrent import CELLS

HEADS = 4
KERNELS = {"glu": 5, "tcn": 3, "qrnn": 2}
"""Taps of the convolutions, by `ConvolutionalConfig.gate`."""


class Cells(nn.Module):
    """Torch's LSTM or GRU."""

    def __init__(self, width: int, cell: str) -> None:
        super().__init__()
        self.cells = CELLS[cell](width, width)

    def forward(self, states: Tensor) -> Tensor:
        outputs: Tensor = self.cells(states)[0]
        return outputs


class Filters(nn.Module):
    """A layer of a GCNN, a TCN or a QRNN, at the beginning of a text."""

    def __init__(self, width: int, gate: str, dilation: int = 1) -> None:
        super().__init__()
        self.block = BLOCKS[gate](width, ConvolutionLayer(width, KERNELS[gate], dilation), 0.0)
        for part in self.block.modules():
            if isinstance(part, Convolution):
                part.reset(self.block.filter_length)  # type: ignore[arg-type]

    def forward(self, states: Tensor) -> Tensor:
        length, lanes, _ = states.shape
        past = [states.new_zeros(lanes, rows, width) for rows, width in self.block.row_shapes]  # type: ignore[union-attr]
        outputs: Tensor = self.block(states, past, Boundaries(SegmentLayout(lanes, length), states.device))[0]
        return outputs


class CausalAttention(nn.Module):
    """Multi-head self-attention with its projections; no positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(XLConfig(vocab=1, width=width, heads=HEADS))

    def forward(self, states: Tensor) -> Tensor:
        mask = AttentionMask(0, len(states))
        outputs: Tensor = self.attention(states, self.attention.project(states), None, mask)
        return outputs


def _feed_forward(width: int) -> nn.Module:
    return FeedForward(XLConfig(vocab=1, width=width, heads=HEADS, feedforward=2 * width))


@dataclass(frozen=True)
class SequenceLayer:
    """How to build a layer, and its arithmetic by length: nothing of the latter is measured."""

    build: Callable[[int], nn.Module]  # by width
    products: Callable[[int, int], int]  # multiplications per token, by n and d
    waits: Callable[[int], int]  # sequential operations: those of which each needs the one before it
    path: Callable[
        [int], int | None
    ]  # from the first token to the last: in layers, or in steps of a recurrence
    kind: str  # recurrent, quasi-recurrent, parallel or control


def _filters(gate: str) -> Callable[[int], nn.Module]:
    return partial(Filters, gate=gate)


def _linear_path(length: int) -> int:
    return math.ceil((length - 1) / (KERNELS["glu"] - 1))


def _dilated_path(length: int) -> int:
    """Levels of a TCN, level l with two convolutions of dilation 2^l: 2 (k-1) (2^levels - 1) tokens back."""
    reach_of_first = 2 * (KERNELS["tcn"] - 1)
    return math.ceil(math.log2((length - 1) / reach_of_first + 1))


LAYERS: dict[str, SequenceLayer] = {
    "LSTM": SequenceLayer(
        partial(Cells, cell="lstm"), lambda _, d: 8 * d * d, lambda n: n, lambda n: n, "recurrent"
    ),
    "GRU": SequenceLayer(
        partial(Cells, cell="gru"), lambda _, d: 6 * d * d, lambda n: n, lambda n: n, "recurrent"
    ),
    "QRNN": SequenceLayer(
        _filters("qrnn"),
        lambda _, d: 3 * KERNELS["qrnn"] * d * d,
        lambda n: n,
        lambda n: n,
        "quasi-recurrent",
    ),
    "GCNN": SequenceLayer(
        _filters("glu"), lambda _, d: 2 * KERNELS["glu"] * d * d, lambda _: 1, _linear_path, "parallel"
    ),
    "TCN": SequenceLayer(
        _filters("tcn"), lambda _, d: 2 * KERNELS["tcn"] * d * d, lambda _: 2, _dilated_path, "parallel"
    ),
    "self-attention": SequenceLayer(
        CausalAttention, lambda n, d: 4 * d * d + (n + 1) * d, lambda _: 1, lambda _: 1, "parallel"
    ),
    "feed-forward": SequenceLayer(
        _feed_forward, lambda _, d: 4 * d * d, lambda _: 1, lambda _: None, "control"
    ),
}
"""All layers. The feed-forward connects no tokens: what it gains from a second thread is the most to expect."""


def work(
    build: Callable[[int], nn.Module], length: int, lanes: int, width: int
) -> dict[str, Callable[[], object]]:
    """Functions that read the same random states: a forward pass, and one with its backward pass."""
    layer, states = build(width), torch.randn(length, lanes, width, requires_grad=True)

    def forward() -> None:
        with torch.no_grad():
            layer(states)

    def training() -> None:
        layer(states).sum().backward()
        states.grad = None
        layer.zero_grad()

    return {"forward": forward, "training": training}
