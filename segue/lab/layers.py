"""Layer types and their complexity: multiplications, memory, sequential operations, path length.

These are the layers in the table of "Attention Is All You Need": attention alone, without the projections around it.
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

from segue.footprint import Largest, kept_for_backward
from segue.native import turned_off
from segue.nn.blockwise import attend
from segue.nn.mask import AttentionMask

KERNEL, WINDOW = 5, 64


class SelfAttention(nn.Module):
    """Causal self-attention with one head; with a span, restricted to the last `span` keys."""

    def __init__(self, width: int, span: int | None = None) -> None:
        super().__init__()
        self.scale, self.span = width**-0.5, span

    def forward(self, states: Tensor) -> Tensor:
        query = states[:, None, None]
        mask = AttentionMask(0, len(states), self.span)
        return attend(query, torch.stack([query, query]), None, mask, self.scale)[:, 0, 0]


class Recurrent(nn.Module):
    """A plain recurrent layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.RNN(width, width)

    def forward(self, states: Tensor) -> Tensor:
        outputs: Tensor = self.cells(states[:, None])[0][:, 0]
        return outputs


class Convolution(nn.Module):
    """A causal convolution."""

    def __init__(self, width: int, kernel: int = KERNEL, dilation: int = 1) -> None:
        super().__init__()
        self.padding = (kernel - 1) * dilation
        self.layer = nn.Conv1d(width, width, kernel, dilation=dilation)

    def forward(self, states: Tensor) -> Tensor:
        outputs: Tensor = self.layer(F.pad(states.T[None], (self.padding, 0)))[0].T
        return outputs


Build = Callable[[int], nn.Module]
"""Builds a layer of a given width, from (n, d) to (n, d)."""

LAYERS: dict[str, Build] = {
    "self-attention": SelfAttention,
    "recurrent": Recurrent,
    "convolution": Convolution,
    "restricted attention": partial(SelfAttention, span=WINDOW),
}

REACHING: dict[str, tuple[str, Callable[[int], Build]]] = {
    "convolution": ("k", lambda kernel: partial(Convolution, kernel=kernel)),
    "restricted attention": ("r", lambda window: partial(SelfAttention, span=window)),
}
"""Layers with a kernel or window: the letter of its size, and the builder for each size."""


def costs(build: Build, length: int, width: int) -> dict[str, int]:
    """Multiplications of a forward pass, bytes saved for the backward pass, elements of the largest tensor of both."""
    layer, states = build(width), torch.randn(length, width, requires_grad=True)
    with turned_off(), FlopCounterMode(display=False) as counted, torch.no_grad():
        layer(states.detach())
    with Largest() as watched:
        layer(states).sum().backward()
    return {
        "products": counted.get_total_flops() // 2,
        "kept": kept_for_backward(partial(layer, states), [states, *layer.parameters()]),
        "largest": watched.elements,
    }


def sequential_operations(build: Build, length: int) -> int:
    """The length of the longest chain of operations that depend on each other."""
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
    """The number of stacked layers until the last output depends on the first input.

    `layer(count)` builds the layer that has `count` layers below it.
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
    """The number of recurrent steps on the shortest path from the first input to the last state."""
    layer, first = Recurrent(4), torch.randn(1, 4, requires_grad=True)
    state = None
    for token in (first, *torch.randn(length - 1, 1, 4)):
        _, state = layer.cells(token, state)
    assert state is not None
    return fewest_operations(state, first, "TanhBackward0")  # one per step


def fewest_operations(output: Tensor, source: Tensor, kind: str) -> int:
    """The fewest operations of one kind on any path of the autograd graph from `output` back to `source`."""
    queue, visited = deque([(output.grad_fn, 0)]), set[Any]()
    while queue:
        node, count = queue.popleft()
        if node is None or node in visited:
            continue
        if getattr(node, "variable", None) is source:
            return count
        visited.add(node)
        counts = node.name() == kind
        for before, _ in node.next_functions:  # 0-1 breadth-first search: the smallest count first
            (queue.append if counts else queue.appendleft)((before, count + counts))
    raise AssertionError("the output does not depend on the source")


PATH_WINDOW = 8
"""The attention window for path lengths: short compared with `complexity.PATH_LENGTHS`."""

PATHS: dict[str, Callable[[int], int]] = {
    "self-attention": partial(layers_between, lambda _: SelfAttention(4)),
    "recurrent": steps_between,
    "convolution": partial(layers_between, lambda _: Convolution(4)),
    "dilated convolution": partial(layers_between, lambda above: Convolution(4, dilation=KERNEL**above)),
    "restricted attention": partial(layers_between, lambda _: SelfAttention(4, PATH_WINDOW)),
}
"""The path length from the first of n inputs to the last output: in layers, or in steps of the recurrent layer."""
