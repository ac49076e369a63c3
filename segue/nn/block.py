"""One layer: attention, then a feed-forward, each with a residual and a norm.

Letters: B lanes, T tokens, M states in memory, H heads, D head width, C width. Time comes first.
"""

from torch import Tensor, nn

from segue.config import XLConfig
from segue.nn.attention import Attention
from segue.nn.memory import Room
from segue.nn.passage import Sight
from segue.nn.positions import Relation


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, for each token alone."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.inner)
        self.outer = nn.Linear(config.inner, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.flatten(
            0, -2
        )  # relu in place wants a result that is no view, and linear views what is no matrix
        out: Tensor = self.outer(self.dropout(self.inner(rows).relu_()))
        return out.view(hidden.shape)


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

    def entering(self, hidden: Tensor) -> Tensor:
        """What attention sees of hidden states, or of remembered ones."""
        normed: Tensor = self.attention_norm(hidden) if self.pre else hidden
        return normed

    def forward(self, hidden: Tensor, past: Tensor | Room, relation: Relation | None, sight: Sight) -> Tensor:
        """The layer's output (T, B, C), seeing its past: what entered it (M, B, C), or room with keys and values."""
        entering = self.entering(hidden)
        if isinstance(past, Room):
            keys_values = self.attention.project_behind(past, entering)
        else:
            keys_values = self.attention.project(self.entering(past), entering)
        hidden = hidden + self.dropout(self.attention(entering, keys_values, relation, sight))
        if self.pre:
            fed: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
            return hidden + fed
        hidden = self.attention_norm(hidden)
        after: Tensor = self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return after
