"""One layer: attention, then a feed-forward, each with a residual and a norm.

Letters: B lanes, T tokens, M states in memory, H heads, D head width, C width. Time comes first.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import LayersConfig
from segue.nn.attention import Attention
from segue.nn.dropout import Dropout
from segue.nn.mask import AttentionMask
from segue.nn.memory import KVSlots
from segue.nn.positions import RelativeKeys


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, for each token alone; or with GELU instead of the maximum, as in BERT."""

    def __init__(self, config: LayersConfig, *, gelu: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.feedforward)
        self.outer = nn.Linear(config.feedforward, config.width)
        self.dropout = Dropout(config.dropout)
        self.gelu = gelu

    def forward(self, hidden: Tensor) -> Tensor:
        rows = self.inner(hidden.flatten(0, -2))  # of a matrix, linear makes no view: relu can work in place
        out: Tensor = self.outer(self.dropout(F.gelu(rows) if self.gelu else rows.relu_()))
        return out.view(hidden.shape)


class Source(NamedTuple):
    """What a layer sees of another sequence: its keys and values (2, S, B, H, D), and which of them."""

    keys_values: Tensor
    mask: AttentionMask


class Block(nn.Module):
    """Post-norm: LayerNorm(x + f(x)), the paper's. Pre-norm: x + f(LayerNorm(x)), and memory is normed too.

    With `crossing`, a decoder's layer: between the two it attends to a source. As in BERT: GELU, and its epsilon.
    """

    def __init__(
        self, config: LayersConfig, *, bias: bool = False, crossing: bool = False, bert: bool = False
    ) -> None:
        super().__init__()
        epsilon = 1e-12 if bert else 1e-5
        self.attention = Attention(config, bias=bias)
        self.attention_norm = nn.LayerNorm(config.width, eps=epsilon)
        if crossing:
            self.cross = Attention(config, bias=bias)
            self.cross_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config, gelu=bert)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=epsilon)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def entering(self, hidden: Tensor) -> Tensor:
        """What attention sees of hidden states, or of remembered ones."""
        normed: Tensor = self.attention_norm(hidden) if self.pre else hidden
        return normed

    def project_source(self, hidden: Tensor) -> Tensor:
        """(2, S, B, H, D) Keys and values of the source's states (S, B, C), for all targets to come."""
        return self.cross.project(hidden)

    def forward(
        self,
        hidden: Tensor,
        past: Tensor | KVSlots,
        relative: RelativeKeys | None,
        mask: AttentionMask,
        source: Source | None = None,
    ) -> Tensor:
        """The layer's output (T, B, C), seeing its past: what entered it (M, B, C), or room with keys and values."""
        entering = self.entering(hidden)
        if isinstance(past, KVSlots):
            keys_values = self.attention.project_behind(past, entering)
        else:
            keys_values = self.attention.project(self.entering(past), entering)
        gathered = self.attention(entering, keys_values, relative, mask)
        hidden = self._added(hidden, gathered, self.attention_norm)
        if source is not None:
            asking = self.cross_norm(hidden) if self.pre else hidden
            gathered = self.cross(asking, source.keys_values, None, source.mask)
            hidden = self._added(hidden, gathered, self.cross_norm)
        fed = self.feed_forward(self.feed_forward_norm(hidden) if self.pre else hidden)
        return self._added(hidden, fed, self.feed_forward_norm)

    def _added(self, hidden: Tensor, part: Tensor, norm: nn.Module) -> Tensor:
        """The residual, and the norm behind it if it stands there."""
        added = hidden + self.dropout(part)
        after: Tensor = added if self.pre else norm(added)
        return after
