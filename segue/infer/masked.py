"""Scores masked language models: how well an encoder knows the masked tokens, and whether two passages follow.

Letters: B texts, S tokens, C width.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from segue.errors import InputError
from segue.nn.task_encoder import MaskedHead, TaskEncoder
from segue.progress import Report, silent
from segue.text.masked_texts import MaskedTexts
from segue.text.text_batches import IGNORED_LABEL, TextBatch

BATCH_TOKENS = 4096
"""Tokens that are read at once."""

SEED = 15
"""Of the masks, the same in every evaluation, so that scores can be compared."""


@dataclass(frozen=True)
class MaskedScore:
    """Sums over masked places and over pairs of passages."""

    nats: float
    places: int
    correct: int  # places whose likeliest piece is the right one
    tokens: int  # that were read
    pairs: int = 0
    pairs_correct: int = 0

    @property
    def perplexity(self) -> float:
        """Of the masked tokens."""
        return math.exp(min(700.0, self.nats / self.places))

    @property
    def accuracy(self) -> float:
        return self.correct / self.places

    @property
    def next_sentence_accuracy(self) -> float | None:
        """None if passages were not paired."""
        return self.pairs_correct / self.pairs if self.pairs else None

    def scores(self) -> dict[str, float]:
        """For the log and the screen, by name."""
        scores = {
            "nats": self.nats / self.places,
            "perplexity": self.perplexity,
            "accuracy": self.accuracy,
        }
        if self.next_sentence_accuracy is not None:
            scores["next_sentence_accuracy"] = self.next_sentence_accuracy
        return scores


@torch.no_grad()
def evaluate_masked(
    model: TaskEncoder, texts: MaskedTexts, *, limit: int | None = None, report: Report = silent
) -> MaskedScore:
    """Score the texts, the first `limit` tokens at most, each masked as its number says: always in the same way."""
    if not isinstance(model.head, MaskedHead):
        raise InputError("this encoder has no masked-LM head, so masked words cannot be scored")
    count = len(texts) if limit is None else min(len(texts), math.ceil(limit / texts.length))
    nats, places, correct, tokens, pairs, pairs_correct = 0.0, 0, 0, 0, 0, 0
    for batch in _batches(texts, count):
        labels = batch.labels[batch.labels != IGNORED_LABEL].to(model.encoder.words.weight.device)
        logits, following = masked_logits(model, batch)
        nats += F.cross_entropy(logits.float(), labels, reduction="sum").item()
        places, correct = places + len(labels), correct + int((logits.argmax(dim=-1) == labels).sum())
        tokens += int(batch.attention_mask.sum())
        if following is not None and batch.next_sentence_label is not None:
            pairs += len(following)
            pairs_correct += int((following.argmax(dim=-1).cpu() == batch.next_sentence_label).sum())
        report("evaluating", (int(batch.numbers[-1]) + 1) * texts.length, count * texts.length)
    if not places:
        raise InputError("there is no token to mask: all of them are special, or their words too long")
    return MaskedScore(nats, places, correct, tokens, pairs, pairs_correct)


def masked_logits(model: TaskEncoder, batch: TextBatch) -> tuple[Tensor, Tensor | None]:
    """Logits (places, V) of the labelled places alone, since V is large; and (B, 2) whether the second text follows."""
    device = model.encoder.words.weight.device
    encoded = model.encoder(
        batch.input_ids.to(device), batch.attention_mask.to(device), batch.token_type_ids.to(device)
    )
    chosen = encoded.last_hidden_state[(batch.labels != IGNORED_LABEL).to(device)]
    predicted = model.predict(chosen, encoded.pooler_output)
    return predicted.prediction_logits, predicted.seq_relationship_logits


def _batches(texts: MaskedTexts, count: int) -> Iterator[TextBatch]:
    size = max(1, BATCH_TOKENS // texts.length)
    for first in range(0, count, size):
        numbers = range(first, min(first + size, count))
        yield texts.batch(
            numbers, [texts.text(number, np.random.default_rng([SEED, number])) for number in numbers]
        )
