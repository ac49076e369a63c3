"""One layer: attention, then a feed-forward, each with a residual and a norm.

Letters: B lanes, T tokens, M states in memory, H heads, D head width, C width.
"""

import torch
from torch import Tensor, nn

from segue.config import XLConfig
from segue.nn.attention import Attention
from segue.nn.positions import Relation


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, for each token alone."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.inner)
        self.outer = nn.Linear(config.inner, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.outer(self.dropout(self.inner(hidden).relu()))
        return out


class Block(nn.Module):
    """Post-norm: LayerNorm(x + f(x)), the paper's. Pre-norm: x + f(LayerNorm(x)), and memory is normed too."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def project(self, states: Tensor) -> Tensor:
        """(B, M, 2, H, D) The keys and values that this layer sees in remembered inputs (B, M, C)."""
        return self.attention.project(self.attention_norm(states) if self.pre else states)

    def forward(
        self, hidden: Tensor, past: Tensor, relation: Relation | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The layer's output (B, T, C), and the keys and values of its input (B, T, 2, H, D)."""
        entering = self.attention_norm(hidden) if self.pre else hidden
        fresh = self.attention.project(entering)
        keys_values = torch.cat([past, fresh], dim=1)
        hidden = hidden + self.dropout(self.attention(entering, keys_values, relation, mask))
        if self.pre:
            return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden))), fresh
        hidden = self.attention_norm(hidden)
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden))), fresh
