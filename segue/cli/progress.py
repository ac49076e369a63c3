"""Progress of long work: one line that is redrawn on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from segue.cli.terminal import draw, wipe


class Progress:
    """A progress line: share done, speed, time left."""

    def __init__(self, unit: str) -> None:
        self._unit, self._begin, self._last, self._drawn = unit, time.monotonic(), time.monotonic(), False
        self.terminal, self._task, self._done = sys.stderr.isatty(), "", 0

    def update(self, task: str, done: int, total: int) -> None:
        now = time.monotonic()
        if task != self._task or done < self._done:  # the next task, or the same once more
            self._task, self._begin = task, now
        self._done = done
        if now - self._last < (0.2 if self.terminal else 5) or now - self._begin < 1:
            return
        self._last = now
        rate = done / (now - self._begin)
        if not total:  # the total is unknown
            self.show(f"{task}: {done:,} {self._unit}  {rate:,.0f}/s")
            return
        left = (total - done) / rate if rate else 0
        self.show(f"{task}: {done / total:4.0%}  {rate:,.0f} {self._unit}/s  {duration(left)} left")

    def show(self, line: str) -> None:
        """Draw a line; on a terminal it replaces the previous one."""
        draw(line)
        self._drawn = True

    def clear(self) -> None:
        """Remove the line, before other text is printed."""
        if self._drawn:
            wipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def duration(seconds: float) -> str:
    """Seconds as text: 3 h 05 min, 12 min 30 s, 45 s."""
    rounded = round(seconds)
    if rounded >= 3600:
        return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
    return f"{rounded // 60} min {rounded % 60:02d} s" if rounded >= 60 else f"{rounded} s"
