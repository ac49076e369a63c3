"""Measuring time and memory on a machine that others use too: interleaved repeats, medians, fitted exponents."""

import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Times:
    """Seconds of one work over all repeats."""

    median: float
    fastest: float
    slowest: float

    def over(self, other: "Times") -> float:
        """How many times as long as the other."""
        return self.median / other.median


def interleaved(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """Every work once in each round, so that what disturbs one disturbs all."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            found[name].append(time.perf_counter() - begin)
    return {name: Times(statistics.median(all_), min(all_), max(all_)) for name, all_ in found.items()}


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the line through (log size, log cost)."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


def resident() -> int:
    """Bytes held now; where the system does not tell, the most there ever were."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident()


def peak_resident() -> int:
    """The most bytes that were ever held; where Linux does not tell, perhaps those of whoever started this process."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    told = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(told.split()[1])
