"""Linformer: attention to a few learned mixtures of all keys and values, so that its cost is linear in the length.

    softmax(Q (E K)^T / sqrt(D)) (F V)         (Wang 2020)

E and F are learned and mix along *time*. So there is no causal form: every mixture holds the future.

Letters: B texts, S tokens, L the longest text, H heads, D head width, C width, k rank, N layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from segue.config import BothSidedConfig
from segue.nn.attention import Attention, gather
from segue.nn.dropout import Dropout
from segue.nn.mask import AttentionMask
from segue.nn.tracing import tracing


def textbook_linformer(
    query: Tensor,
    keys_values: Tensor,
    matrices: Tensor,
    scale: float,
    padded: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """(S, B, H, D) The formula as printed, of queries (S, B, H, D), keys and values (2, S, B, H, D), and E and F.

    E and F are `matrices` (2 or 1, H or 1, k, S). Scores have no columns of tokens to mask, so the keys and values of
    padding, True in `padded` (B, S), are zeroed before they are mixed.
    """
    if padded is not None:
        keys_values = keys_values.masked_fill(padded.T[..., None, None], 0)
    both = matrices.expand(2, keys_values.size(3), -1, -1)
    key, value = torch.einsum("ehks,esbhd->ekbhd", both, keys_values)
    weights = (torch.einsum("tbhd,kbhd->bhtk", query, key) * scale).softmax(dim=-1)
    weights = weights if dropout is None else dropout(weights)
    return torch.einsum("bhtk,kbhd->tbhd", weights, value)


@dataclass(frozen=True, eq=False)
class Mixing:
    """One layer's E and F for texts of S tokens: (2 or 1, H or 1, k, S), one where keys and values, or heads, share."""

    matrices: Tensor

    def attend(self, attention: Attention, hidden: Tensor, mask: AttentionMask) -> Tensor:
        """The output of self-attention for `hidden` (S, B, C)."""
        query = attention.query(hidden).unflatten(-1, (attention.heads, -1))
        if tracing():
            rows, padded = attention.project(hidden), mask.padded_keys
            gathered = textbook_linformer(query, rows, self.matrices, attention.scale, padded)
            plain: Tensor = attention.out(gathered.flatten(2))
            return plain
        mixed = self._mixed_by_head if self.matrices.size(1) > 1 else self._mixed
        keys_values = mixed(attention, hidden, mask.padded_keys)
        mixtures = AttentionMask(keys_values.size(1), len(hidden), causal=False)
        gathered = gather(query, keys_values, None, mixtures, attention.scale, attention.dropout)
        out: Tensor = attention.out(gathered.flatten(2))
        return out

    def _mixed_by_head(self, attention: Attention, hidden: Tensor, padded: Tensor | None) -> Tensor:
        """(2, k, B, H, D) Keys and values are computed, then mixed."""
        keys_values = attention.project(hidden)
        if padded is not None:
            keys_values = keys_values.masked_fill(padded.T[..., None, None], 0)
        lanes = keys_values.size(2)
        mixed = self.matrices @ keys_values.permute(0, 3, 1, 2, 4).flatten(3)
        by_lane: Tensor = mixed.unflatten(-1, (lanes, -1))
        return by_lane.permute(0, 2, 3, 1, 4).contiguous()

    def _mixed(self, attention: Attention, hidden: Tensor, padded: Tensor | None) -> Tensor:
        """(2, k, B, H, D) The inputs are mixed first, so that k rows are projected, not S.

        E (X W + b) = (E X) W + (E 1) b.
        """
        matrices, real = self.matrices[:, 0], hidden.new_ones(len(hidden), 1)
        if padded is not None:
            real = (~padded).T.to(hidden.dtype)
            hidden = hidden * real[..., None]
        lanes, rank = hidden.size(1), matrices.size(1)
        mixed = (matrices @ hidden.flatten(1)).unflatten(-1, (lanes, -1)).flatten(1, 2)  # (2 or 1, k B, C)
        weight = attention.key_value.weight.unflatten(0, (2, -1))
        keys_values = (mixed @ weight.mT).unflatten(1, (rank, lanes))
        if attention.key_value.bias is not None:
            sums = (matrices @ real)[..., None]  # (2 or 1, k, B or 1, 1)
            keys_values = keys_values + sums * attention.key_value.bias.view(2, 1, 1, -1)
        by_head: Tensor = keys_values.unflatten(-1, (attention.heads, -1))
        return by_head


class Linformer(nn.Module):
    """The matrices E and F of all layers: 2 N H; 2 N if heads share; N if keys and values do too; or 1 in all."""

    def __init__(self, config: BothSidedConfig, layers: int, longest: int) -> None:
        super().__init__()
        counts = {
            "none": (layers, 2, config.heads),
            "heads": (layers, 2, 1),
            "key-value": (layers, 1, 1),
            "layers": (1, 1, 1),
        }
        self.matrices = nn.Parameter(torch.empty(*counts[config.share], config.rank, longest))
        bound = config.rank**-0.5
        nn.init.uniform_(self.matrices, -bound, bound)

    def layer(self, number: int, size: int) -> Mixing:
        """A layer's E and F for texts of `size` tokens: the first columns."""
        return Mixing(self.matrices[number % len(self.matrices), ..., :size])
