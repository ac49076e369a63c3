"""One layer: attention, then a feed-forward, each with a residual and a norm.

Letters: B lanes, T tokens, M states in memory, H heads, D head width, C width. Time comes first.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segue.config import LayersConfig
from segue.nn.attention import Attention
from segue.nn.dropout import Dropout
from segue.nn.kv_memory import KVSlots
from segue.nn.low_rank import LowRank
from segue.nn.mask import AttentionMask
from segue.nn.positions import Relative

Activation = Callable[[Tensor], Tensor]
"""May work in place."""


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, for each token alone; or with another activation, as BERT's GELU."""

    def __init__(self, config: LayersConfig, activation: Activation = torch.relu_) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.feedforward)
        self.outer = nn.Linear(config.feedforward, config.width)
        self.dropout = Dropout(config.dropout)
        self.activation = activation

    def forward(self, hidden: Tensor) -> Tensor:
        rows = self.inner(hidden.flatten(0, -2))  # of a matrix, linear makes no view: relu can work in place
        out: Tensor = self.outer(self.dropout(self.activation(rows)))
        return out.view(hidden.shape)


class Source(NamedTuple):
    """What a decoder's layer attends to: keys and values (2, S, B, H, D) of the source, and their mask."""

    keys_values: Tensor
    mask: AttentionMask


class Block(nn.Module):
    """Post-norm: LayerNorm(x + f(x)), the paper's. Pre-norm: x + f(LayerNorm(x)), and memory is normed too.

    A decoder's block has a `cross` attention between the two, to a source.
    """

    def __init__(
        self,
        config: LayersConfig,
        *,
        bias: bool = False,
        cross: Attention | None = None,
        activation: Activation = torch.relu_,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention = Attention(config, bias=bias)
        self.attention_norm = nn.LayerNorm(config.width, eps=epsilon)
        if cross is not None:
            self.cross = cross
            self.cross_norm = nn.LayerNorm(config.width, eps=epsilon)
        self.feed_forward = FeedForward(config, activation)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=epsilon)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def project_source(self, hidden: Tensor) -> Tensor:
        """(2, S, B, H, D) Keys and values of the source's states (S, B, C), for all targets to come."""
        return self.cross.project(hidden)

    @torch.no_grad()
    def remember(self, hidden: Tensor, slots: KVSlots) -> None:
        """Write keys and values of the layer's inputs (T, B, C) to the last T slots, and compute nothing else."""
        self.attention.project_behind(slots, self.normed_input(hidden))

    def forward(
        self,
        hidden: Tensor,
        past: Tensor | KVSlots,
        relative: Relative | LowRank | None,
        mask: AttentionMask,
        source: Source | None = None,
    ) -> Tensor:
        """The layer's output (T, B, C). `past` is memory: its earlier inputs (M, B, C), or slots of a KV cache."""
        normed = self.normed_input(hidden)
        if isinstance(relative, LowRank):  # of an encoder, which has no memory
            gathered = relative.attend(self.attention, normed, mask)
        else:
            gathered = self.attention(normed, self._keys_values(past, normed), relative, mask)
        return self.behind_attention(hidden, gathered, source)

    def behind_attention(self, hidden: Tensor, gathered: Tensor, source: Source | None = None) -> Tensor:
        """The layer's output (T, B, C), of its inputs and of what self-attention has gathered for them."""
        hidden = self._added(hidden, gathered, self.attention_norm)
        if source is not None:
            normed = self.cross_norm(hidden) if self.pre else hidden
            gathered = self.cross(normed, source.keys_values, None, source.mask)
            hidden = self._added(hidden, gathered, self.cross_norm)
        fed = self.feed_forward(self.feed_forward_norm(hidden) if self.pre else hidden)
        return self._added(hidden, fed, self.feed_forward_norm)

    def _keys_values(self, past: Tensor | KVSlots, normed: Tensor) -> Tensor:
        """(2, M + T, B, H, D) Of memory and of the layer's inputs as attention sees them."""
        if isinstance(past, KVSlots):
            return self.attention.project_behind(past, normed)
        return self.attention.project(self.normed_input(past), normed)

    def normed_input(self, hidden: Tensor) -> Tensor:
        """What attention sees of a layer's inputs, of this segment or remembered."""
        normed: Tensor = self.attention_norm(hidden) if self.pre else hidden
        return normed

    def _added(self, hidden: Tensor, part: Tensor, norm: nn.Module) -> Tensor:
        """The residual connection, and the norm behind it if it stands there."""
        added = hidden + self.dropout(part)
        after: Tensor = added if self.pre else norm(added)
        return after
