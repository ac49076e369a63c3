"""Sentence pairs in batches of like length: little padding, a budget of tokens, another order in every epoch."""

from typing import Any

import numpy as np

POOL = 100
"""Batches whose pairs are sorted by length together: enough that lengths are alike, few enough that order is random."""


def batches(lengths: np.ndarray[Any, Any], budget: int, seed: int, epoch: int) -> list[np.ndarray[Any, Any]]:
    """Numbers of pairs, batch by batch, each pair once. `lengths` (pairs, 2) of source and target.

    A batch holds at most `budget` tokens of either side, padding included; a pair that is longer goes alone. The
    order depends on nothing but the arguments, so an epoch can be taken up anywhere.
    """
    longest = lengths.max(axis=1)
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    pool = max(1, POOL * budget // max(1, int(longest.mean())))
    found: list[np.ndarray[Any, Any]] = []
    for first in range(0, len(order), pool):
        some = order[first : first + pool]
        found += _cut(some[np.argsort(longest[some], kind="stable")], longest, budget)
    return [found[place] for place in random.permutation(len(found))]


def longest_first(lengths: np.ndarray[Any, Any], budget: int) -> list[np.ndarray[Any, Any]]:
    """All numbers, the longest first, in batches; for what needs no chance, such as validation and translating."""
    longest = lengths.max(axis=1)
    return _cut(np.argsort(-longest, kind="stable"), longest, budget)


def _cut(
    order: np.ndarray[Any, Any], longest: np.ndarray[Any, Any], budget: int
) -> list[np.ndarray[Any, Any]]:
    """Batches of neighbours in the order."""
    found, begin, widest = [], 0, 0
    for place, number in enumerate(order):
        widest = max(widest, int(longest[number]))
        if place > begin and widest * (place - begin + 1) > budget:
            found.append(order[begin:place])
            begin, widest = place, int(longest[number])
    if begin < len(order):
        found.append(order[begin:])
    return found
