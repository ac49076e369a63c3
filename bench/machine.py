"""Measuring on a machine that others use too: interleaved repeats, medians, and what the machine itself can do."""

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

THREADS = 2


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


def limits() -> dict[str, float]:
    """Floating-point operations and bytes a second that torch itself reaches here."""
    square = torch.randn(1024, 1024)
    table = torch.randn(64 * 2**20)  # more than the caches of one core hold
    times = interleaved(
        {"product": lambda: square @ square, "sum": table.sum, "copy": table.clone}, repeats=7
    )
    return {
        "matmul_flops": 2 * 1024**3 / times["product"].fastest,
        "read_bytes": 4 * table.numel() / times["sum"].fastest,
        "copy_bytes": 8 * table.numel() / times["copy"].fastest,
    }


def environment() -> dict[str, Any]:
    """What every result says of where it was made."""
    versions = {}
    for name in ("torch", "segue-lm", "transformers", "x-transformers", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def as_json(times: Mapping[str, Times]) -> dict[str, dict[str, float]]:
    return {name: {key: round(value, 6) for key, value in asdict(one).items()} for name, one in times.items()}
