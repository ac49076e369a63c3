"""Batches of sentence pairs of similar length (length bucketing): little padding, at most so many tokens."""

from typing import Any

import numpy as np

BATCHES_PER_POOL = 100
"""Pairs are sorted by length in pools of so many batches: lengths in a batch are similar, the order stays random."""


def batches(lengths: np.ndarray[Any, Any], budget: int, seed: int, epoch: int) -> list[np.ndarray[Any, Any]]:
    """The pair numbers of each batch of an epoch; every pair occurs once. `lengths` (pairs, 2) of source and target.

    A batch has at most `budget` tokens on each side, padding included; a longer pair is a batch of its own. The order
    depends on the arguments only, so training can be resumed in the middle of an epoch.
    """
    longest = lengths.max(axis=1)
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    pool = max(1, BATCHES_PER_POOL * budget // max(1, int(longest.mean())))
    chosen: list[np.ndarray[Any, Any]] = []
    for first in range(0, len(order), pool):
        some = order[first : first + pool]
        chosen += _cut(some[np.argsort(longest[some], kind="stable")], longest, budget)
    return [chosen[place] for place in random.permutation(len(chosen))]


def longest_first(lengths: np.ndarray[Any, Any], budget: int) -> list[np.ndarray[Any, Any]]:
    """The pair numbers of each batch, the longest pairs first: no shuffling, for validation and translation."""
    longest = lengths.max(axis=1)
    return _cut(np.argsort(-longest, kind="stable"), longest, budget)


def _cut(
    order: np.ndarray[Any, Any], longest: np.ndarray[Any, Any], budget: int
) -> list[np.ndarray[Any, Any]]:
    """Cut the order into batches of at most `budget` tokens, padding included."""
    cut, first, widest = [], 0, 0
    for place, number in enumerate(order):
        widest = max(widest, int(longest[number]))
        if place > first and widest * (place - first + 1) > budget:
            cut.append(order[first:place])
            first, widest = place, int(longest[number])
    if first < len(order):
        cut.append(order[first:])
    return cut
