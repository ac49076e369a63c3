"""Statistics over several seeds: mean, range, and whether one side is better with every seed."""

from collections.abc import Sequence
from itertools import combinations


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def half_range(values: Sequence[float]) -> float:
    """Half the difference between the highest and the lowest value."""
    return (max(values) - min(values)) / 2


def plus_minus(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± half the range as text; the mean alone if there is one value."""
    text = f"{mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {half_range(values):.{digits}f}"


def signed_plus_minus(values: Sequence[float], digits: int = 3) -> str:
    """The same with a sign, for differences."""
    return f"{'+' if mean(values) >= 0 else ''}{plus_minus(values, digits)}"


def always_lower(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the left value is lower than the right one with every seed."""
    return all(one < other for one, other in zip(left, right, strict=True))


MARGIN = 0.005
"""Bits: a smaller difference does not count. Untrained models differ by less than this between ways to read."""


def fewer_bits(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the left side needs fewer bits with every seed, and its mean is lower by more than `MARGIN`."""
    return always_lower(left, right) and mean(right) - mean(left) > MARGIN


def seed_count(values: Sequence[float]) -> str:
    """The number of seeds in words."""
    return "one seed" if len(values) == 1 else f"each of {len(values)} seeds"


def concordant_pairs(ours: Sequence[float], theirs: Sequence[float]) -> tuple[int, int]:
    """The number of pairs that are in the same order in both rankings, and the number of all pairs."""
    pairs = list(combinations(range(len(ours)), 2))
    same = sum((ours[a] < ours[b]) == (theirs[a] < theirs[b]) for a, b in pairs)
    return same, len(pairs)
