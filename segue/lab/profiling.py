"""Time and memory, measured on a shared machine: interleaved repeats, medians, fitted exponents."""

import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Times:
    """Seconds of one function over all repeats."""

    median: float
    fastest: float
    slowest: float

    def over(self, other: "Times") -> float:
        """The ratio of the medians: how many times as long as the other."""
        return self.median / other.median


def interleaved(
    works: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Times]:
    """Call every function once per round, so that a disturbance of the machine affects all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            begin = clock()
            work()
            seconds[name].append(clock() - begin)
    return {name: Times(statistics.median(times), min(times), max(times)) for name, times in seconds.items()}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through (log size, log cost)."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


def resident() -> int:
    """Resident bytes of this process now; the peak where the system has no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident()


def peak_resident() -> int:
    """Peak resident bytes of this process. (Without /proc the figure may include the parent process's peak.)"""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(peak.split()[1])
