"""Masked texts of a corpus: passages, or pairs of passages, with [CLS] and [SEP], and some tokens masked.

Letters: B texts, S tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from segue.text.corpus import Stream
from segue.text.masking import MaskablePieces, choose_places, mask_places
from segue.text.passages import DocumentPassages, Passages, document_passages, running_passages
from segue.text.text_batches import IGNORED_LABEL, TextBatch, padded_rows
from segue.text.wordpiece import CLS, PAD, SEP

Ids = np.ndarray[Any, Any]


class Masking(NamedTuple):
    """What is masked."""

    share: float = 0.15
    whole_words: bool = False
    pairs: bool = False  # pairs of passages, for next-sentence prediction


class MaskedText(NamedTuple):
    """One text or pair."""

    ids: list[int]
    labels: list[int]
    types: list[int]
    follows: bool


@dataclass(frozen=True, eq=False)
class MaskedTexts:
    """All texts of a stream with at most `length` tokens each. Masks are drawn when a text is asked for."""

    passages: Passages
    pieces: MaskablePieces
    masking: Masking
    length: int

    def __len__(self) -> int:
        return len(self.passages)

    def text(self, number: int, random: np.random.Generator) -> MaskedText:
        """A text, masked anew."""
        ids, types, follows = self._unmasked(number, random)
        places = choose_places(
            ids, self.pieces, self.masking.share, whole_words=self.masking.whole_words, random=random
        )
        seen, labels = mask_places(ids, places, self.pieces, random)
        return MaskedText(seen.tolist(), labels.tolist(), types, follows)

    def _unmasked(self, number: int, random: np.random.Generator) -> tuple[Ids, list[int], bool]:
        cls, sep = [self.pieces.ids[CLS]], [self.pieces.ids[SEP]]
        if isinstance(self.passages, DocumentPassages):
            first, second, follows = self.passages.pair(number, self.length - 3, random)
            ids = np.concatenate([cls, first, sep, second, sep])
            return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1), follows
        ids = np.concatenate([cls, self.passages.tokens(number, sep[0]), sep])
        return ids, [0] * len(ids), True

    def batch(self, numbers: Sequence[int] | Ids, texts: Sequence[MaskedText]) -> TextBatch:
        """Texts as tensors."""
        lengths = [len(text.ids) for text in texts]
        return TextBatch(
            torch.as_tensor(np.asarray(numbers, dtype=np.int64)),
            padded_rows([text.ids for text in texts], self.pieces.ids[PAD]),
            padded_rows([[1] * length for length in lengths], 0),
            padded_rows([text.types for text in texts], 0),
            padded_rows([text.labels for text in texts], IGNORED_LABEL),
            torch.tensor([int(not text.follows) for text in texts]) if self.masking.pairs else None,
        )


def masked_texts(
    stream: Stream, pieces: MaskablePieces, masking: Masking, length: int, name: str, *, offset: int = 0
) -> MaskedTexts:
    """The texts of a stream, called `name` in errors. An offset moves the bounds of passages that are no pairs."""
    passages = (
        document_passages(stream, length - 3, name)
        if masking.pairs
        else running_passages(stream, length - 2, offset)
    )
    return MaskedTexts(passages, pieces, masking, length)
