"""A layer reading one more token, for generation: what `block.py` computes, in the fewest operations.

A single token leaves little to compute, so what surrounds the products weighs as much as they do.

Letters: B lanes, H heads, D head width, C width, S keys, R rows of a relation, N = B H.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.nn.block import Block
from segue.nn.positions import RelativeKeys

Linear = Callable[[Tensor], Tensor]

WEIGHTS_FIRST = 8
"""Lanes from which on a CPU multiplies the weights by them faster than them by the weights."""


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(B, outputs) As F.linear."""
    if len(hidden) < WEIGHTS_FIRST or hidden.device.type != "cpu":
        return F.linear(hidden, weight, bias)
    if bias is None:
        return torch.mm(weight, hidden.T).T.contiguous()
    return torch.addmm(bias[:, None], weight, hidden.T).T.contiguous()


def _product(layer: nn.Module) -> Linear:
    """A linear layer without what a module does around it."""
    return (
        partial(linear, weight=layer.weight, bias=layer.bias)
        if isinstance(layer, nn.Linear)
        else layer.forward
    )


class Norm(NamedTuple):
    """A LayerNorm's weights."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, hidden: Tensor) -> Tensor:
        return torch.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.epsilon)


class Step(NamedTuple):
    """A block's weights within reach, and its relation."""

    relative: RelativeKeys
    query: Linear
    key_value: Linear
    out: Linear
    attention_norm: Norm
    inner: Linear
    outer: Linear
    feed_forward_norm: Norm
    scale: float
    pre: bool

    def __call__(self, hidden: Tensor, keys_values: Tensor) -> Tensor:
        """(B, C) The layer's output; of keys and values (2, B, H, S, D) it writes the newest itself."""
        entering = self.attention_norm(hidden) if self.pre else hidden
        lanes, heads, _, width = keys_values.shape[1:]
        fresh = self.key_value(entering).view(lanes, 2, heads, width)
        keys_values[..., -1, :].copy_(fresh.transpose(0, 1))
        query = self.query(entering).view(lanes, heads, width)
        keys, values = keys_values.flatten(1, 2)
        weights = torch.softmax(self._scores(query, keys), dim=-1)
        hidden = hidden + self.out(torch.bmm(weights, values).view(lanes, -1))
        if not self.pre:
            hidden = self.attention_norm(hidden)
        fed = self.inner(self.feed_forward_norm(hidden) if self.pre else hidden).relu_()
        hidden = hidden + self.outer(fed)
        return hidden if self.pre else self.feed_forward_norm(hidden)

    def _scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """(N, 1, S) For a single query, distances and keys stand in the same order: nothing to shift."""
        (lanes, heads, width), count = query.shape, keys.size(1)
        rows = self.relative.rows.transpose(0, 1)[:, -count:]
        far = (query + self.relative.position_bias).transpose(0, 1)
        by_distance = torch.bmm(far, rows.transpose(1, 2))  # (H, B, R)
        if self.relative.row_bias is not None:
            by_distance = by_distance + self.relative.row_bias.T[:, None, -count:]
        near = (query + self.relative.content_bias).view(lanes * heads, 1, width)
        keys = keys.transpose(1, 2)
        if lanes == 1 and rows.size(1) == count:
            return torch.baddbmm(
                by_distance.transpose(0, 1).view(heads, 1, count),
                near,
                keys,
                beta=self.scale,
                alpha=self.scale,
            )
        scores = torch.bmm(near, keys).view(lanes, heads, count)
        scores[..., count - rows.size(1) :] += by_distance.transpose(0, 1)
        return scores.mul_(self.scale).view(lanes * heads, 1, count)


def step_of(block: nn.Module, relative: RelativeKeys | None) -> Step:
    """What of a block a step needs."""
    assert isinstance(block, Block)
    assert relative is not None
    attention, feed = block.attention, block.feed_forward
    norms = [
        Norm(norm.weight, norm.bias, norm.eps) for norm in (block.attention_norm, block.feed_forward_norm)
    ]
    return Step(
        relative,
        _product(attention.query),
        _product(attention.key_value),
        _product(attention.out),
        norms[0],
        _product(feed.inner),
        _product(feed.outer),
        norms[1],
        attention.scale,
        block.pre,
    )
