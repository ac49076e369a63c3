"""The cross-entropy of a text by token, line or window, for texts of any length, at constant memory.

It finds anomalies: a line stands out if it is less expected than lines of its length usually are in this text.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from segue.infer.session import Session

CHUNK_TOKENS = 4096
"""Tokens that are read before their cross-entropy is handed on."""


@dataclass(frozen=True)
class Stretch:
    """A token, line or window of the text."""

    number: int  # from 1
    offset: int  # of its first byte
    text: bytes
    tokens: int
    nats: float
    excess: float  # above the mean of this text, in standard deviations

    @property
    def bits_per_token(self) -> float:
        return self.nats / math.log(2) / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Where the tokenizer is lossless: text that was lost costs no nats."""
        return self.nats / math.log(2) / max(1, len(self.text))


def surprises(session: Session, pieces: Iterable[bytes]) -> Iterator[tuple[bytes, float]]:
    """Every token of the text with its cross-entropy in nats; 0 for the first, which is not predicted."""
    for piece in pieces:
        ids, texts = session.tokenizer.spans(piece)
        for begin in range(0, len(ids), CHUNK_TOKENS):
            chunk = torch.as_tensor(ids[begin : begin + CHUNK_TOKENS], dtype=torch.int64)
            first = session.reader.hidden is None
            nats = session.read(chunk)
            yield from zip(texts[begin : begin + CHUNK_TOKENS], [0.0] * first + nats, strict=True)


def stretches(tokens: Iterable[tuple[bytes, float]], per: str, window: int) -> Iterator[Stretch]:
    """Group tokens: each alone, by lines, or `window` of them."""
    usual, number, offset = _Usual(), 0, 0
    text, count, nats = b"", 0, 0.0
    for piece, value in tokens:
        text, count, nats = text + piece, count + 1, nats + value
        usual.add(value)
        if per == "token" or (per == "line" and b"\n" in piece) or (per == "window" and count == window):
            number += 1
            yield Stretch(number, offset, text, count, nats, usual.excess(count, nats))
            offset += len(text)
            text, count, nats = b"", 0, 0.0
    if count:
        yield Stretch(number + 1, offset, text, count, nats, usual.excess(count, nats))


def most_surprising(stretches: Iterable[Stretch], count: int) -> list[Stretch]:
    """The stretches with the highest excess, in the order of the text."""
    best = heapq.nlargest(count, stretches, key=lambda stretch: stretch.excess)
    return sorted(best, key=lambda stretch: stretch.number)


class _Usual:
    """Running mean and variance of the tokens' cross-entropy."""

    def __init__(self) -> None:
        self._count, self._mean, self._square = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self._count += 1
        step = value - self._mean
        self._mean += step / self._count
        self._square += step * (value - self._mean)

    def excess(self, count: int, nats: float) -> float:
        spread = math.sqrt(self._square / self._count) if self._count else 0.0
        return (nats - self._mean * count) / (spread * math.sqrt(count)) if spread else 0.0
