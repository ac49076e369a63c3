"""A BERT-style encoder with BERT's interface: every token attends to every other.

Letters: B texts, S tokens, H heads, C width, E width of the embedding, N layers.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import EncoderConfig
from segue.errors import InputError
from segue.nn.attention import attention_weights
from segue.nn.block import Activation, Block
from segue.nn.dropout import Dropout
from segue.nn.low_rank import build_low_rank
from segue.nn.mask import AttentionMask
from segue.nn.neighbours import begin_with_neighbours

EPSILON = 1e-12
"""Of BERT's norms."""

DEVIATION = 0.02
"""The standard deviation of BERT's initial weights."""

ACTIVATIONS: dict[str, Activation] = {"gelu": F.gelu, "gelu-tanh": partial(F.gelu, approximate="tanh")}


class Encoded(NamedTuple):
    """Under the names that BERT's users know."""

    last_hidden_state: Tensor  # (B, S, C)
    pooler_output: Tensor | None  # (B, C), made of the first token; None without a pooler
    hidden_states: tuple[Tensor, ...] | None = None  # N + 1 of (B, S, C): the embedding, then every layer
    attentions: tuple[Tensor, ...] | None = None  # N of (B, H, S, S)


class Encoder(nn.Module):
    """Embeddings of word, position and type, normed; post-norm layers; a pooled first token.

    With `shared_layers` and an `embedding` that is not as wide as the model, ALBERT's.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab, config.embedding)
        self.places = nn.Embedding(config.max_positions, config.embedding)
        self.types = nn.Embedding(config.types, config.embedding)
        self.norm = nn.LayerNorm(config.embedding, eps=EPSILON)
        self.dropout = Dropout(config.dropout)
        self.widened = nn.Linear(config.embedding, config.width) if config.embedding != config.width else None
        activation = ACTIVATIONS[config.activation]
        self.blocks = nn.ModuleList(
            Block(config, bias=True, activation=activation, epsilon=EPSILON)
            for _ in range(1 if config.shared_layers else config.layers)
        )
        self.pooler = nn.Linear(config.width, config.width) if config.pooler else None
        begin_as_bert(self)
        if config.local_heads:
            begin_with_neighbours(self.places, self.layers()[0].attention, config.local_heads, DEVIATION)
        if config.attention != "full":  # behind BERT's start, because it has its own
            self.low_rank = build_low_rank(config, config.layers, config.max_positions)

    def layers(self) -> list[Block]:
        """The N layers in their order; one block stands for all of them if they are shared."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return blocks * self.config.layers if self.config.shared_layers else blocks

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> Encoded:
        """Read texts (B, S); `attention_mask` is 0 for padding, `token_type_ids` number the texts of a pair."""
        self._check(input_ids, attention_mask, token_type_ids)
        if output_attentions and self.config.attention != "full":
            raise InputError(f"{self.config.attention} has no attention weights of single tokens to show")
        size = input_ids.size(1)
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        hidden = self.embed(input_ids, torch.arange(size, device=input_ids.device), types).transpose(0, 1)
        mask = AttentionMask(
            size,
            size,
            padding=unseen(attention_mask),
            causal=False,
            window=self.config.window or None,
            global_tokens=self.config.global_tokens,
        )
        states, attentions = [hidden], []
        for number, block in enumerate(self.layers()):
            low_rank = None if self.config.attention == "full" else self.low_rank.layer(number, size)
            if output_attentions:
                attentions.append(_weights(block, hidden, mask))
            hidden = block(hidden, hidden[:0], low_rank, mask)
            states.append(hidden)
        hidden = hidden.transpose(0, 1)
        return Encoded(
            hidden,
            self.pooled(hidden[:, 0]),
            tuple(state.transpose(0, 1) for state in states) if output_hidden_states else None,
            tuple(attentions) if output_attentions else None,
        )

    def embed(self, ids: Tensor, places: Tensor, types: Tensor) -> Tensor:
        """(…, C) The input of the first layer."""
        embedded: Tensor = self.dropout(self.norm(self.words(ids) + self.places(places) + self.types(types)))
        return embedded if self.widened is None else self.widened(embedded)

    def pooled(self, first: Tensor) -> Tensor | None:
        """(B, C) Of the first token's last states (B, C)."""
        return None if self.pooler is None else F.tanh(self.pooler(first))

    def _check(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> None:
        check_texts(ids, mask, types)
        if ids.size(1) > self.config.max_positions:
            raise InputError(
                f"{ids.size(1)} tokens are more than the {self.config.max_positions} positions that the encoder knows; "
                "truncate the texts"
            )


def check_texts(ids: Tensor, mask: Tensor | None, types: Tensor | None) -> None:
    """Refuse what is no batch of texts."""
    if ids.dim() != 2 or not ids.size(1):
        raise InputError(f"input_ids should have the shape (texts, tokens); found {tuple(ids.shape)}")
    for name, other in (("attention_mask", mask), ("token_type_ids", types)):
        if other is not None and other.shape != ids.shape:
            raise InputError(
                f"{name} should have the shape of input_ids, {tuple(ids.shape)}; found {tuple(other.shape)}"
            )


def begin_as_bert(module: nn.Module) -> None:
    """BERT's initial weights: normal with one small standard deviation; norms one, biases zero."""
    for name, weight in module.named_parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, 0.0, DEVIATION)
        else:
            nn.init.constant_(weight, 1.0 if name.endswith("norm.weight") else 0.0)


def _weights(block: Block, hidden: Tensor, mask: AttentionMask) -> Tensor:
    """(B, H, S, S) The attention weights of a layer for its input (S, B, C), by the textbook's formula."""
    attention = block.attention
    query = attention.query(hidden).unflatten(-1, (attention.heads, -1))
    return attention_weights(query, attention.project(hidden)[0], None, mask, attention.scale)


def unseen(mask: Tensor | None) -> Tensor | None:
    """(B, 1, S, S) True where a key is masked. A text that is masked everywhere attends to all of itself."""
    if mask is None or (mask.is_cpu and bool(mask.all())):  # a GPU would have to be waited for
        return None
    hidden = ~mask.bool() & mask.bool().any(dim=1, keepdim=True)
    return hidden[:, None, None].expand(-1, -1, mask.size(1), -1)
