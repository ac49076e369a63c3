"""Batches of sentence pairs as tensors: padded, with start and end tokens.

Letters: B pairs, S tokens of the source, T of the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segue.text.pairs import PairSet
from segue.text.special_tokens import IGNORED, special_tokens


@dataclass(frozen=True, eq=False)
class Batch:
    """Sentence pairs side by side, padded."""

    numbers: np.ndarray[Any, Any]  # (B,) which pairs of the set they are
    source: Tensor  # (B, S) encoder input: the source and the end token
    source_lengths: Tensor  # (B,)
    decoder_input: Tensor  # (B, T) the start token and the target
    target_lengths: Tensor  # (B,)
    targets: Tensor  # (B, T) what the decoder predicts: the target and the end token; IGNORED in padding


def batch_of(pairs: PairSet, numbers: np.ndarray[Any, Any]) -> Batch:
    """The pairs with these numbers as one batch."""
    chosen = [pairs.pair(int(number)) for number in numbers]
    start, end = special_tokens(pairs.header.vocab)
    source_end = special_tokens(pairs.header.source_vocab or pairs.header.vocab).end
    source, source_lengths = padded([[*source.tolist(), source_end] for source, _ in chosen], source_end)
    decoder_input, target_lengths = padded([[start, *target.tolist()] for _, target in chosen], end)
    targets, _ = padded([[*target.tolist(), end] for _, target in chosen], IGNORED)
    return Batch(numbers, source, source_lengths, decoder_input, target_lengths, targets)


def padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B, longest), filled up with `filler` at their ends; and their lengths (B,)."""
    lengths = torch.tensor([len(row) for row in rows])
    size = int(lengths.max())
    return torch.tensor([[*row, *[filler] * (size - len(row))] for row in rows]), lengths
