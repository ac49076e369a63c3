"""Measuring on a shared machine: interleaved repeats, medians, and the machine's own limits."""

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from segue.lab.profiling import Times, interleaved

__all__ = ["THREADS", "Times", "as_json", "environment", "interleaved", "limits"]

THREADS = 2


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
