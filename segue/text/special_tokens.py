"""Special tokens of sentence pairs: start and end, which have no text, and the label of padding.

A model of pairs has all ids of its tokenizer, and these two after them.
"""

from typing import NamedTuple

IGNORED = -1
"""The target at a padded position (PyTorch's `ignore_index`): it has no loss."""


class SpecialTokens(NamedTuple):
    """The ids of one vocabulary that its tokenizer does not have."""

    start: int  # the decoder's first input
    end: int  # the last token of a source and of a target; inputs are padded with it


def special_tokens(vocab: int) -> SpecialTokens:
    """The special tokens of a model with `vocab` ids, these included."""
    ids_of_text = text_vocab(vocab)
    return SpecialTokens(start=ids_of_text, end=ids_of_text + 1)


def vocab_with_special(size: int) -> int:
    """The vocabulary size of a model whose tokenizer has `size` ids."""
    return size + len(SpecialTokens._fields)


def text_vocab(vocab: int) -> int:
    """The number of ids that are the tokenizer's: all but the special ones."""
    return vocab - len(SpecialTokens._fields)
