"""Batches of texts for an encoder, under BERT's usual names: padded, with the labels of a task.

Letters: B texts, S tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

IGNORED_LABEL = -100
"""The label of a token without one: padding, [CLS], what is not masked. PyTorch's and BERT's usual number."""


class TextBatch(NamedTuple):
    """Texts side by side. A tuple, because FSDP looks for tensors in tuples and not in other classes."""

    numbers: Tensor  # (B,) which texts of their set they are
    input_ids: Tensor  # (B, S)
    attention_mask: Tensor  # (B, S): 1 for a token, 0 for padding
    token_type_ids: Tensor  # (B, S): 1 for the second text of a pair
    labels: Tensor  # of tokens (B, S), of texts (B,): ids, or floats of scores; of spans (B, 2): first and last token
    next_sentence_label: Tensor | None = (
        None  # (B,): 0 if the second text follows the first, 1 if it is a random one
    )

    def rows(self, which: slice) -> "TextBatch":
        """Some of the texts, padded to the longest of them."""
        mask = self.attention_mask[which]
        size = int(mask.sum(dim=1).max()) if len(mask) else 0
        by_token = self.labels.shape == self.input_ids.shape
        return TextBatch(
            self.numbers[which],
            self.input_ids[which, :size],
            mask[:, :size],
            self.token_type_ids[which, :size],
            self.labels[which, :size] if by_token else self.labels[which],
            None if self.next_sentence_label is None else self.next_sentence_label[which],
        )


def padded_rows(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """(B, S) Rows of numbers, filled up to the longest of them."""
    size = max(len(row) for row in rows)
    return torch.tensor([[*row, *[filler] * (size - len(row))] for row in rows])
