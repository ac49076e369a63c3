"""The Universal Transformer as encoder, with BERT's interface: every token attends to every other in every step.

Letters: B texts, S tokens, C width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import UniversalEncoderConfig
from segue.nn.block import Block
from segue.nn.dropout import Dropout
from segue.nn.encoder import Encoded, check_texts, unseen
from segue.nn.halting import Pondering, initialise_halting
from segue.nn.mask import AttentionMask
from segue.nn.positions import interleaved_sinusoids
from segue.nn.recurrence import Recurrence


class UniversalEncoder(nn.Module):
    """Embeddings of word and type; one block, applied over and over; a pooled first token."""

    def __init__(self, config: UniversalEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab, config.width)
        self.types = nn.Embedding(config.types, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList([Block(config, bias=True)])
        self.recurrence = Recurrence(config)
        self.pooler = nn.Linear(config.width, config.width)
        for name, weight in self.named_parameters():  # BERT's start
            if weight.dim() > 1:
                nn.init.normal_(weight, 0.0, 0.02)
            else:
                nn.init.constant_(weight, 1.0 if name.endswith("norm.weight") else 0.0)
        initialise_halting(self)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Encoded:
        """Read texts (B, S); `attention_mask` is 0 for padding, `token_type_ids` number the texts of a pair."""
        encoded, _ = self.pondered(input_ids, attention_mask, token_type_ids)
        return encoded

    def pondered(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Encoded, Pondering]:
        """The same, and how long each token was thought about (B, S). Hidden states of padding are zero."""
        check_texts(input_ids, attention_mask, token_type_ids)
        size, device = input_ids.size(1), input_ids.device
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        hidden = self.dropout(self.norm(self.words(input_ids) + self.types(types))).transpose(0, 1)
        mask = AttentionMask(size, size, padding=unseen(attention_mask), causal=False)
        places = interleaved_sinusoids(
            torch.arange(1, size + 1, device=device), hidden.size(-1), hidden.dtype
        )

        def take(_: int, entered: Tensor) -> Tensor:
            after: Tensor = self.blocks[0](entered, entered[:0], None, mask)
            return after

        real = None if attention_mask is None else attention_mask.bool().T
        hidden, pondering = self.recurrence(hidden, real, take, places=places[:, None])
        if real is not None:
            hidden = hidden.masked_fill(~real[..., None], 0)
        hidden = hidden.transpose(0, 1)
        return Encoded(hidden, F.tanh(self.pooler(hidden[:, 0]))), pondering.transposed()
