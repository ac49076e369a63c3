"""Attention over memory and segment: a query scores a key by what it holds and by how far back it lies.

Letters: B lanes, T queries, S keys, H heads, D head width, C width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import XLConfig
from segue.nn.positions import Relation


def relative_shift(scores: Tensor) -> Tensor:
    """Re-index columns from distance to key.

    Column j of `scores` is distance S-1-j; column j of the result is key j.
    Entries for keys ahead of their query are meaningless: mask them.
    """
    *lead, queries, keys = scores.shape
    padded = F.pad(scores, (1, 0)).view(*lead, keys + 1, queries)
    return padded[..., 1:, :].reshape(*lead, queries, keys)


def attention_scores(query: Tensor, key: Tensor, relation: Relation | None) -> Tensor:
    """(B, H, T, S) What each query (B, T, H, D) has to do with each key (B, S, H, D), before scaling.

    With a relation, the four terms of Transformer-XL: (a) q·k, (b) q·r, (c) u·k, (d) v·r. Without, (a) alone.
    """
    if relation is None:
        return torch.einsum("bthd,bshd->bhts", query, key)
    content = torch.einsum("bthd,bshd->bhts", query + relation.content_bias, key)  # (a) + (c)
    position = torch.einsum("bthd,shd->bhts", query, relation.rows)  # (b)
    position = position + relation.row_bias.T[:, None]  # (d)
    return content + relative_shift(position)


class Attention(nn.Module):
    """softmax(scores / sqrt(D)) v, over several heads."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.heads, inner = config.heads, config.heads * config.head_width
        self.query = nn.Linear(config.width, inner, bias=False)
        self.key_value = nn.Linear(config.width, 2 * inner, bias=False)
        self.out = nn.Linear(inner, config.width, bias=False)
        self.scale = config.head_width**-0.5
        self.dropout = nn.Dropout(config.attention_dropout)

    def project(self, states: Tensor) -> Tensor:
        """(B, S, 2, H, D) Keys and values of states (B, S, C)."""
        projected: Tensor = self.key_value(states).unflatten(-1, (2, self.heads, -1))
        return projected

    def forward(
        self, hidden: Tensor, keys_values: Tensor, relation: Relation | None, mask: Tensor | None
    ) -> Tensor:
        """What the queries in `hidden` (B, T, C) gather from the keys that `mask` lets them see."""
        query = self.query(hidden).unflatten(-1, (self.heads, -1))
        key, value = keys_values.unbind(dim=2)
        scores = attention_scores(query, key, relation) * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = self.dropout(scores.softmax(dim=-1))
        gathered = torch.einsum("bhts,bshd->bthd", weights, value)
        out: Tensor = self.out(gathered.flatten(2))
        return out
