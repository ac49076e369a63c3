"""Overlapping windows over a text that is longer than an encoder reads."""

from collections.abc import Sequence


def windows(length: int, room: int, stride: int) -> list[range]:
    """Ranges of at most `room` tokens, one every `stride`, that cover all `length` tokens; one if they fit."""
    assert 0 < stride <= room
    begins = range(0, max(1, length - room + stride), stride)
    return [range(begin, min(begin + room, length)) for begin in begins]


def owners(cut: Sequence[range]) -> list[int]:
    """For each token the window in which it has most context: on its poorer side, then in all; else the first."""
    best: dict[int, tuple[int, int, int]] = {}
    for number, window in enumerate(cut):
        for token in window:
            context = min(token - window.start, window.stop - 1 - token), len(window), -number
            best[token] = max(best.get(token, context), context)
    return [-best[token][2] for token in sorted(best)]
