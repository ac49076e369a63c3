"""Progress on anything that takes over two seconds: a moving line on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from segue.cli.terminal import draw, wipe


class Progress:
    """How far, how fast, how long still."""

    def __init__(self, unit: str) -> None:
        self._unit, self._begin, self._last, self._drawn = unit, time.monotonic(), time.monotonic(), False
        self.terminal, self._task = sys.stderr.isatty(), ""

    def update(self, task: str, done: int, total: int) -> None:
        now = time.monotonic()
        if task != self._task:
            self._task, self._begin = task, now
        if now - self._last < (0.2 if self.terminal else 5) or now - self._begin < 1:
            return
        self._last = now
        rate = done / (now - self._begin)
        if not total:  # nobody knows how much there is
            self.show(f"{task}: {done:,} {self._unit}  {rate:,.0f}/s")
            return
        left = (total - done) / rate if rate else 0
        self.show(f"{task}: {done / total:4.0%}  {rate:,.0f} {self._unit}/s  {duration(left)} left")

    def show(self, line: str) -> None:
        """One line, in place of the one before if this is a terminal."""
        draw(line)
        self._drawn = True

    def clear(self) -> None:
        """Make room for other text."""
        if self._drawn:
            wipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def duration(seconds: float) -> str:
    """3 h 05 min, 12 min 30 s, 45 s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
