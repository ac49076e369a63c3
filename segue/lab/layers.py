"""Kinds of layers, and what one of them costs: products, memory, steps that must wait, paths between tokens.

A layer is what the table of "Attention Is All You Need" compares: attention alone, without the projections around it.
Letters: n tokens, d width, k kernel, r window.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from segue.nn.blockwise import attend
from segue.nn.footprint import Largest, kept_for_backward
from segue.nn.mask import AttentionMask

KERNEL, WINDOW = 5, 64


class Attending(nn.Module):
    """Causal self-attention with one head; with a span, restricted to so many keys."""

    def __init__(self, width: int, span: int | None = None) -> None:
        super().__init__()
        self.scale, self.span = width**-0.5, span

    def forward(self, states: Tensor) -> Tensor:
        query = states[:, None, None]
        mask = AttentionMask(0, len(states), self.span)
        return attend(query, torch.stack([query, query]), None, mask, self.scale)[:, 0, 0]


class Recurring(nn.Module):
    """A plain recurrent layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.RNN(width, width)

    def forward(self, states: Tensor) -> Tensor:
        outputs: Tensor = self.cells(states[:, None])[0][:, 0]
        return outputs


class Convolving(nn.Module):
    """A causal convolution."""

    def __init__(self, width: int, kernel: int = KERNEL, dilation: int = 1) -> None:
        super().__init__()
        self.before = (kernel - 1) * dilation
        self.layer = nn.Conv1d(width, width, kernel, dilation=dilation)

    def forward(self, states: Tensor) -> Tensor:
        outputs: Tensor = self.layer(F.pad(states.T[None], (self.before, 0)))[0].T
        return outputs


Build = Callable[[int], nn.Module]
"""A layer of a given width: from (n, d) to (n, d)."""

LAYERS: dict[str, Build] = {
    "self-attention": Attending,
    "recurrent": Recurring,
    "convolution": Convolving,
    "restricted attention": partial(Attending, span=WINDOW),
}

REACHING: dict[str, tuple[str, Callable[[int], Build]]] = {
    "convolution": ("k", lambda kernel: partial(Convolving, kernel=kernel)),
    "restricted attention": ("r", lambda window: partial(Attending, span=window)),
}
"""Layers that see so many tokens at once: the letter of that number, and the layer for each."""


def costs(build: Build, length: int, width: int) -> dict[str, int]:
    """Products of a forward pass, bytes kept for the backward pass, and elements of the largest tensor of both."""
    layer, states = build(width), torch.randn(length, width, requires_grad=True)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        layer(states.detach())
    with Largest() as watched:
        layer(states).sum().backward()
    return {
        "products": counted.get_total_flops() // 2,
        "kept": kept_for_backward(partial(layer, states), [states, *layer.parameters()]),
        "largest": watched.elements,
    }


def waiting(build: Build, length: int) -> int:
    """The longest chain of operations of which each must wait for the one before."""
    out = build(4)(torch.randn(length, 4, requires_grad=True)).sum()
    depth: dict[Any, int] = {}
    stack: list[tuple[Any, bool]] = [(out.grad_fn, False)]
    while stack:
        node, ready = stack.pop()
        before = [other for other, _ in node.next_functions if other is not None]
        if ready:
            depth[node] = 1 + max((depth[other] for other in before), default=0)
        elif node not in depth:
            stack.append((node, True))
            stack.extend((other, False) for other in before if other not in depth)
    return depth[out.grad_fn]


def layers_between(layer: Callable[[int], nn.Module], length: int) -> int:
    """How many layers, one above the other, it takes until the last output knows of the first input.

    `layer` makes the one that has so many below it.
    """
    states = torch.randn(length, 4, requires_grad=True)
    hidden, count = states, 0
    while count <= length:
        hidden, count = layer(count)(hidden), count + 1
        (gradient,) = torch.autograd.grad(hidden[-1].sum(), states, retain_graph=True)
        if gradient[0].any():
            return count
    return count


def steps_between(length: int) -> int:
    """How many steps of a recurrent layer lie on the shortest way from the first of its inputs to its last state."""
    layer, first = Recurring(4), torch.randn(1, 4, requires_grad=True)
    state = None
    for token in (first, *torch.randn(length - 1, 1, 4)):
        _, state = layer.cells(token, state)
    assert state is not None
    return fewest(state, first, "TanhBackward0")  # of which a step has one


def fewest(output: Tensor, source: Tensor, kind: str) -> int:
    """The fewest operations of one kind on any way through the graph from a tensor back to one that it depends on."""
    ahead, seen = deque([(output.grad_fn, 0)]), set[Any]()
    while ahead:
        node, count = ahead.popleft()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", None) is source:
            return count
        seen.add(node)
        counts = node.name() == kind
        for before, _ in node.next_functions:  # the nearest first
            (ahead.append if counts else ahead.appendleft)((before, count + counts))
    raise AssertionError("the one does not depend on the other")


SHORT = 8
"""A window that is short against the lengths for which paths are found."""

PATHS: dict[str, Callable[[int], int]] = {
    "self-attention": partial(layers_between, lambda _: Attending(4)),
    "recurrent": steps_between,
    "convolution": partial(layers_between, lambda _: Convolving(4)),
    "dilated convolution": partial(layers_between, lambda above: Convolving(4, dilation=KERNEL**above)),
    "restricted attention": partial(layers_between, lambda _: Attending(4, SHORT)),
}
"""How far apart the first of n inputs and the last output are: in layers, and in steps of the recurrent one."""
