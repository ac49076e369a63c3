"""An encoder with the head of a task: masked words, the label or score of a text, tags of words, a span.

Letters: B texts, S tokens, C width, E width of the embedding, V vocabulary.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import EncoderConfig, HeadConfig
from segue.nn.dropout import Dropout
from segue.nn.encoder import ACTIVATIONS, EPSILON, Encoder, begin_as_bert


class MaskedHead(nn.Module):
    """Scores of all words at a place: dense, GELU, LayerNorm, then the encoder's own table of words and a bias."""

    def __init__(self, config: EncoderConfig, *, next_sentence: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.embedding)
        self.norm = nn.LayerNorm(config.embedding, eps=EPSILON)
        self.bias = nn.Parameter(torch.empty(config.vocab))
        self.next_sentence = nn.Linear(config.width, 2) if next_sentence else None
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """(…, V) logits of states (…, C), with the table of words (V, E). V is large: give it few states."""
        return F.linear(self.norm(self.activation(self.dense(states))), table, self.bias)


class LinearHead(nn.Module):
    """A linear layer behind dropout: of the pooled text, or of every token."""

    def __init__(self, config: EncoderConfig, outputs: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.linear = nn.Linear(config.width, outputs)

    def forward(self, states: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.dropout(states))
        return logits


class Predicted(NamedTuple):
    """Unnormalised predictions, under the names that BERT's users know.

    logits: of a text (B, labels) or its score (B, 1), of its tokens (B, S, labels or V), or of span ends (B, S, 2).
    """

    logits: Tensor
    seq_relationship_logits: Tensor | None = None  # (B, 2): the second text follows, or it does not

    @property
    def prediction_logits(self) -> Tensor:
        return self.logits

    @property
    def start_logits(self) -> Tensor:
        return self.logits[..., 0]

    @property
    def end_logits(self) -> Tensor:
        return self.logits[..., 1]


class TaskEncoder(nn.Module):
    """An encoder, and a head if it has a task."""

    def __init__(self, config: EncoderConfig, task: HeadConfig | None = None) -> None:
        super().__init__()
        self.config, self.task = config, task
        self.encoder = Encoder(config)
        self.head: MaskedHead | LinearHead | None = None
        if task is not None:
            self.head = (
                MaskedHead(config, next_sentence=task.next_sentence)
                if task.task == "masked"
                else LinearHead(config, task.outputs)
            )
            begin_as_bert(self.head)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Predicted:
        """The head's predictions for texts (B, S), as `Encoder` reads them. It must have a head."""
        encoded = self.encoder(input_ids, attention_mask, token_type_ids)
        return self.predict(encoded.last_hidden_state, encoded.pooler_output)

    def predict(self, states: Tensor, pooled: Tensor | None) -> Predicted:
        """The head's predictions from the encoder's last states (B, S, C), or some of them, and pooled texts (B, C)."""
        assert self.head is not None, "there is no head"
        if isinstance(self.head, LinearHead):
            inputs = pooled if self.task is not None and self.task.pooled else states
            assert inputs is not None, "the config asks for a pooler"
            return Predicted(self.head(inputs))
        following = None if self.head.next_sentence is None else self.head.next_sentence(pooled)
        return Predicted(self.head(states, self.encoder.words.weight), following)
