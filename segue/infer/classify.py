"""Labels and scores of texts or pairs, by an encoder with the head of such a task.

Letters: B texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from segue.checkpoint import TextEncoder
from segue.config import EncoderReading
from segue.errors import InputError
from segue.infer.embed import embed_pieces, read_pieces
from segue.nn.task_encoder import LinearHead
from segue.text.wordpiece import Pieces, Text

COMMANDS = {"text": "classify", "score": "classify", "tags": "tag", "span": "answer", "masked": "fill"}
"""The command for each kind of head."""

PRESETS = {"text": "classify-cpu", "score": "pairs-cpu", "tags": "tag-cpu", "span": "answer-cpu"}
"""The preset that trains each kind of head."""


class Classified(NamedTuple):
    """The likeliest label of a text, and the probabilities of all labels, the likeliest first."""

    label: str
    probability: float
    probabilities: dict[str, float]


def classify(encoder: TextEncoder, texts: Sequence[Text]) -> list[Classified]:
    """The label of each text, or of each pair."""
    check_head(encoder, "text")
    check_inputs(encoder, texts)
    return classified(encoder, read_pieces(encoder, texts))


def classified(encoder: TextEncoder, pieces: Sequence[Pieces]) -> list[Classified]:
    """The label of each text that is tokenized already."""
    labels = check_head(encoder, "text")
    probabilities = text_logits(encoder, pieces).float().softmax(dim=-1)
    best, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rows = zip(order.tolist(), best.tolist(), strict=True)
    ranked = [dict(zip([labels[number] for number in row], shares, strict=True)) for row, shares in rows]
    return [Classified(*next(iter(one.items())), one) for one in ranked]


def score(encoder: TextEncoder, texts: Sequence[Text]) -> list[float]:
    """The score of each text, or of each pair."""
    check_head(encoder, "score")
    check_inputs(encoder, texts)
    return scored(encoder, read_pieces(encoder, texts))


def scored(encoder: TextEncoder, pieces: Sequence[Pieces]) -> list[float]:
    """The score of each text that is tokenized already."""
    check_head(encoder, "score")
    return text_logits(encoder, pieces)[:, 0].tolist()


@torch.no_grad()
def text_logits(encoder: TextEncoder, pieces: Sequence[Pieces]) -> Tensor:
    """(B, labels) of texts, by the pooled first token."""
    first = EncoderReading(max_length=encoder.reading.max_length, pooling="cls", normalize=False)
    states = embed_pieces(encoder, pieces, first, -1)
    return encoder.model.predict(states[:, None], encoder.model.encoder.pooled(states)).logits


def check_head(encoder: TextEncoder, task: str) -> tuple[str, ...]:
    """Refuse an encoder whose head has another task; else its labels."""
    head = encoder.model.task
    if head is None:
        raise InputError(
            f"this encoder has no head for a task; fine-tune it: segue train {PRESETS[task]} --from ENCODER --data DIR"
        )
    if head.task != task or not isinstance(encoder.model.head, LinearHead):
        raise InputError(
            f"this encoder has a head for the task {head.task!r}; use segue {COMMANDS[head.task]}"
        )
    return head.labels


def check_inputs(encoder: TextEncoder, texts: Sequence[Text]) -> None:
    """Refuse single texts where the head was trained on pairs, and empty ones. (Foreign heads do not say it.)"""
    head = encoder.model.task
    assert head is not None
    for number, text in enumerate(texts, start=1):
        if head.pairs and not isinstance(text, tuple):
            raise InputError(
                f"text {number:,} has no other to go with it: this encoder was trained on pairs of texts"
            )
        for part in text if isinstance(text, tuple) else (text,):
            if not part.strip():
                raise InputError(f"text {number:,} is empty")
