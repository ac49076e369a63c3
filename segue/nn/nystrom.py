"""Nyström attention: through a few landmarks, the means of neighbours, at a cost that is linear in the length.

    softmax(Q k~^T) Z softmax(q~ K^T) V,   Z the pseudo-inverse of softmax(q~ k~^T)         (Xiong 2021)

q~ and k~ are means of neighbouring queries and keys. They pool the future, so there is no causal form.

Letters: B texts, S tokens, H heads, D head width, C width, m landmarks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from segue.config import BothSidedConfig
from segue.nn.attention import Attention
from segue.nn.mask import AttentionMask

STEPS = 6
"""Of the pseudo-inverse, as published."""


def textbook_nystrom(query: Tensor, key: Tensor, value: Tensor, landmarks: int) -> Tensor:
    """(S, D) The formula as printed for one head and scaled queries, with an exact pseudo-inverse; m divides S."""
    few_queries, few_keys = (rows.unflatten(0, (landmarks, -1)).mean(dim=1) for rows in (query, key))
    between = (few_queries @ few_keys.T).softmax(dim=-1)
    to_few, from_few = (query @ few_keys.T).softmax(dim=-1), (few_queries @ key.T).softmax(dim=-1)
    gathered: Tensor = to_few @ torch.linalg.pinv(between) @ from_few @ value
    return gathered


def pseudo_inverse(matrices: Tensor, steps: int = STEPS) -> Tensor:
    """(…, m, m) Of each matrix by itself: Z <- Z (13 - A Z (15 - A Z (7 - A Z))) / 4 from A^T / (|A|_1 |A|_inf)."""
    columns, rows = matrices.abs().sum(dim=-2), matrices.abs().sum(dim=-1)
    inverse = matrices.transpose(-1, -2) / (columns.amax(dim=-1) * rows.amax(dim=-1))[..., None, None]
    one = torch.eye(matrices.size(-1), dtype=matrices.dtype, device=matrices.device)
    for _ in range(steps):
        product = matrices @ inverse
        inverse = inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product))) / 4
    return inverse


def nystrom(
    query: Tensor,
    keys_values: Tensor,
    rank: int,
    scale: float,
    padded: Tensor | None = None,
    steps: int = STEPS,
) -> Tensor:
    """(S, B, H, D) Attention of queries (S, B, H, D) to keys and values (2, S, B, H, D) through `rank` landmarks.

    A text of fewer tokens has a landmark for each of them. Padding, True in `padded` (B, S), is part of no landmark.
    """
    size, lanes = query.shape[:2]
    real = query.new_ones(lanes, size, dtype=torch.bool) if padded is None else ~padded
    means, unused = _landmarks(real, min(rank, size), query.dtype)
    minus_infinity = float("-inf")
    query, (key, value) = query * scale, keys_values
    few_queries, few_keys = (torch.einsum("bms,sbhd->mbhd", means, rows) for rows in (query, key))
    to_few = torch.einsum("tbhd,mbhd->bhtm", query, few_keys)
    to_few = to_few.masked_fill(unused[:, None, None], minus_infinity).softmax(dim=-1)
    from_few = torch.einsum("mbhd,sbhd->bhms", few_queries, key)
    from_few = from_few.masked_fill(~real[:, None, None], minus_infinity).softmax(dim=-1)
    between = torch.einsum("mbhd,nbhd->bhmn", few_queries, few_keys)
    between = between.masked_fill(unused[:, None, None], minus_infinity).softmax(dim=-1)
    # Unused landmarks are a block of their own, the identity: it inverts to itself and changes neither norm.
    one = torch.eye(between.size(-1), dtype=between.dtype, device=between.device)
    between = torch.where(unused[:, None, :, None], one, between)
    gathered: Tensor = to_few @ (pseudo_inverse(between, steps) @ (from_few @ value.permute(1, 2, 0, 3)))
    return gathered.permute(2, 0, 1, 3)


def _landmarks(real: Tensor, most: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(B, m, S) The weights of the means of neighbours, for real tokens (B, S); and (B, m), True for unused ones."""
    lengths = real.sum(dim=1, keepdim=True)
    counts = lengths.clamp(max=most)
    home = (real.long().cumsum(dim=1) - 1) * counts // lengths  # (B, S): parts of equal length, or one longer
    numbers = torch.arange(most, device=real.device)
    inside = (home[:, None] == numbers[:, None]) & real[:, None]
    members = inside.to(dtype)
    return members / members.sum(dim=-1, keepdim=True).clamp(min=1), numbers >= counts


@dataclass(frozen=True)
class Landmarks:
    """Self-attention through at most `rank` landmarks."""

    rank: int

    def attend(self, attention: Attention, hidden: Tensor, mask: AttentionMask) -> Tensor:
        """The output of self-attention for `hidden` (S, B, C)."""
        query = attention.query(hidden).unflatten(-1, (attention.heads, -1))
        gathered = nystrom(query, attention.project(hidden), self.rank, attention.scale, mask.padded_keys)
        out: Tensor = attention.out(gathered.flatten(2))
        return out


class Nystrom(nn.Module):
    """Nothing is learned: every layer makes its landmarks of its own queries and keys."""

    def __init__(self, config: BothSidedConfig) -> None:
        super().__init__()
        self.rank = config.rank

    def layer(self, number: int, size: int) -> Landmarks:  # noqa: ARG002
        return Landmarks(self.rank)
