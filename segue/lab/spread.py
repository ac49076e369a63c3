"""Figures of several seeds: their mean, how far they lie apart, and whether one side beats the other in each."""

from collections.abc import Iterable, Sequence
from itertools import combinations


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def half_range(values: Sequence[float]) -> float:
    """Half of what lies between the lowest and the highest."""
    return (max(values) - min(values)) / 2


def said(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± half of the range; the mean alone if there is one."""
    shown = f"{mean(values):.{digits}f}"
    return shown if len(values) == 1 else f"{shown} ± {half_range(values):.{digits}f}"


def signed(values: Sequence[float], digits: int = 3) -> str:
    """The same of differences."""
    return f"{'+' if mean(values) >= 0 else ''}{said(values, digits)}"


def lower(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the left side is lower with every seed."""
    return all(one < other for one, other in zip(left, right, strict=True))


MARGIN = 0.005
"""Bits: less is no difference. Models with untrained weights differ by less where only the way to read differs."""


def fewer_bits(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the left side needs fewer bits with every seed, and by enough to speak of."""
    return lower(left, right) and mean(right) - mean(left) > MARGIN


def with_seeds(values: Sequence[float]) -> str:
    """How many seeds a comparison rests on, in words."""
    return "one seed" if len(values) == 1 else f"each of {len(values)} seeds"


def pairs_in_order(ours: Sequence[float], theirs: Sequence[float]) -> tuple[int, int]:
    """How many pairs stand in the same order in both, and how many there are."""
    places: Iterable[tuple[int, int]] = list(combinations(range(len(ours)), 2))
    same = sum((ours[a] < ours[b]) == (theirs[a] < theirs[b]) for a, b in places)
    return same, len(list(places))
