"""Counts of all n-grams of a text, up to an order: a trie in sorted arrays.

The text is a ring, as lanes read it: every n-gram has a successor, so the counts of a context's continuations add up
to the count of the context. Level n holds the n-grams in the order of their tokens; the continuations of an n-gram are
neighbours in level n + 1. Letters: N tokens of text, P places that are looked up.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from segue.errors import InputError
from segue.progress import Report, silent

Array = np.ndarray[Any, Any]

ABSENT = -1
"""The number of an n-gram that is not in the text."""

MOST = 2**31 - 1
"""Tokens of a text, at most: numbers and counts of n-grams have 32 bits."""


@dataclass(frozen=True, eq=False)
class Level:
    """All n-grams of one length: the last token and the count of each, and where the continuations of a prefix lie."""

    tokens: Array  # ascending among the continuations of a prefix
    counts: Array
    begins: Array  # one for each n-gram of the level before, and the end of the last

    def continuations(self, prefixes: Array) -> Array:
        """How many different tokens follow each prefix; 0 for an absent one."""
        begins, ends = self._range(prefixes)
        return ends - begins

    def numbers(self, prefixes: Array, tokens: Array) -> Array:
        """The numbers of the n-grams that these prefixes and tokens make: one binary search for all of them."""
        low, end = self._range(prefixes)
        high = end
        while (open_ := low < high).any():
            middle = (low + high) // 2
            before = open_ & (self.tokens[np.minimum(middle, len(self.tokens) - 1)] < tokens)
            low, high = np.where(before, middle + 1, low), np.where(before | ~open_, high, middle)
        found = (low < end) & (self.tokens[np.minimum(low, len(self.tokens) - 1)] == tokens)
        return np.where(found, low, ABSENT)

    def _range(self, prefixes: Array) -> tuple[Array, Array]:
        present = prefixes != ABSENT
        return np.where(present, self.begins[prefixes], 0), np.where(present, self.begins[prefixes + 1], 0)


@dataclass(frozen=True, eq=False)
class Lookup:
    """What the counts know of each target, by the order of the n-gram that ends with it: (P, orders) arrays."""

    contexts: Array  # the count of the n - 1 tokens before it; of order 1, all tokens
    targets: Array  # the count of these and the target
    continuations: Array  # the number of different tokens that follow these


@dataclass(frozen=True, eq=False)
class NGramCounts:
    """The n-grams of a text from order 1 on."""

    size: int  # N
    levels: tuple[Level, ...]

    def lookup(self, ids: Array, before: int) -> Lookup:
        """Look up each token of a text but the first `before`, which are context only."""
        ids, prefixes = ids.astype(np.int64), np.zeros(len(ids), np.int64)  # a prefix ends before its token
        counts, columns = np.array([self.size]), []
        for level in self.levels:
            numbers = level.numbers(prefixes, ids)
            columns.append((_of(counts, prefixes), _of(level.counts, numbers), level.continuations(prefixes)))
            prefixes, counts = np.concatenate([[ABSENT], numbers[:-1]]), level.counts
        return Lookup(*(np.stack(kind, axis=1)[before:] for kind in zip(*columns, strict=True)))


def _of(values: Array, numbers: Array) -> Array:
    """The values of these n-grams, and 0 for absent ones."""
    return np.where(numbers == ABSENT, 0, values[numbers])


def count_ngrams(ids: Array, vocab: int, order: int, report: Report = silent) -> NGramCounts:
    """Count all n-grams of a text up to an order. Each level is one sort of N numbers."""
    if not 1 <= order <= len(ids) <= MOST:
        raise InputError(
            f"n-grams of order {order} of a text of {len(ids):,} tokens cannot be counted; give an order from 1 to the "
            f"number of tokens, of which there may be {MOST:,} at most"
        )
    tokens, numbers, prefixes, levels = ids.astype(np.int64), np.zeros(len(ids), np.int64), 1, []
    for level in range(order):
        report("counting n-grams", level * len(ids), order * len(ids))
        keys = (
            np.roll(numbers, 1) * vocab + tokens
        )  # n-grams that end here: the prefix ended one token before
        by_key = np.argsort(keys)
        ordered = keys[by_key]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        where = np.flatnonzero(first)
        numbers[by_key] = np.cumsum(first) - 1
        before, last = np.divmod(ordered[where], vocab)
        levels.append(
            Level(
                tokens=last.astype(ids.dtype),
                counts=np.diff(where, append=len(ids)).astype(np.int32),
                begins=np.searchsorted(before, np.arange(prefixes + 1)).astype(np.int32),
            )
        )
        prefixes = len(where)
    report("counting n-grams", order * len(ids), order * len(ids))
    return NGramCounts(len(ids), tuple(levels))
