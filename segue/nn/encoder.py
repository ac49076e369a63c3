"""A BERT-style encoder with BERT's interface: every token attends to every other.

Letters: B texts, S tokens, C width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import EncoderConfig
from segue.errors import InputError
from segue.nn.block import Block
from segue.nn.dropout import Dropout
from segue.nn.mask import AttentionMask


class Encoded(NamedTuple):
    """Under the names that BERT's users know."""

    last_hidden_state: Tensor  # (B, S, C)
    pooler_output: Tensor  # (B, C), made of the first token


class Encoder(nn.Module):
    """Embeddings of word, position and type, normed; post-norm layers; a pooled first token."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab, config.width)
        self.places = nn.Embedding(config.max_positions, config.width)
        self.types = nn.Embedding(config.types, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config, bias=True, activation=F.gelu, epsilon=1e-12) for _ in range(config.layers)
        )
        self.pooler = nn.Linear(config.width, config.width)
        for name, weight in self.named_parameters():  # BERT's start
            if weight.dim() > 1:
                nn.init.normal_(weight, 0.0, 0.02)
            else:
                nn.init.constant_(weight, 1.0 if name.endswith("norm.weight") else 0.0)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Encoded:
        """Read texts (B, S); `attention_mask` is 0 for padding, `token_type_ids` number the texts of a pair."""
        self._check(input_ids, attention_mask, token_type_ids)
        size, device = input_ids.size(1), input_ids.device
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        hidden = self.words(input_ids) + self.places(torch.arange(size, device=device)) + self.types(types)
        hidden = self.dropout(self.norm(hidden)).transpose(0, 1)
        mask = AttentionMask(size, size, padding=_unseen(attention_mask), causal=False)
        for block in self.blocks:
            hidden = block(hidden, hidden[:0], None, mask)
        hidden = hidden.transpose(0, 1)
        return Encoded(hidden, F.tanh(self.pooler(hidden[:, 0])))

    def _check(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> None:
        if ids.dim() != 2 or not ids.size(1):
            raise InputError(f"input_ids should have the shape (texts, tokens); found {tuple(ids.shape)}")
        for name, other in (("attention_mask", mask), ("token_type_ids", types)):
            if other is not None and other.shape != ids.shape:
                raise InputError(
                    f"{name} should have the shape of input_ids, {tuple(ids.shape)}; found {tuple(other.shape)}"
                )
        if ids.size(1) > self.config.max_positions:
            raise InputError(
                f"{ids.size(1)} tokens are more than the {self.config.max_positions} positions that the encoder knows; "
                "truncate the texts"
            )


def _unseen(mask: Tensor | None) -> Tensor | None:
    """(B, 1, S, S) True where a key is masked. A text that is masked everywhere attends to all of itself."""
    if mask is None or bool(mask.all()):
        return None
    hidden = ~mask.bool() & mask.bool().any(dim=1, keepdim=True)
    return hidden[:, None, None].expand(-1, -1, mask.size(1), -1)
