"""Measuring on a shared machine: interleaved repeats, medians, and the machine's own limits."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from segue.lab.profiling import Times, interleaved

__all__ = ["THREADS", "Times", "as_json", "best_in_turns", "environment", "interleaved", "limits"]

THREADS = 2
PAUSE = 0.3  # seconds until the threads of the other side, which spin after their work, are asleep


def best_in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, threads: int) -> dict[str, float]:
    """The seconds of each side's best round; of one thread, processor time, which other processes do not disturb."""
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE)
            begin = clock()
            call()
            seconds[name] = min(seconds[name], clock() - begin)
    return seconds


def limits() -> dict[str, float]:
    """FLOP/s and bytes per second that torch reaches on this machine."""
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
    """The versions and machine that are recorded with every result."""
    versions = {}
    for name in (
        "torch",
        "segue-lm",
        "transformers",
        "x-transformers",
        "linformer",
        "performer-pytorch",
        "numpy",
    ):
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
