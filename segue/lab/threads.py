"""Wall-clock time on one thread and on two, in interleaved turns."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from segue.lab.profiling import interleaved


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


TURNS = {"one": 1, "again": 1, "two": 2}
"""Threads of each measurement. One thread is measured twice: how much the two differ is noise."""


def on_threads(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """The fastest seconds of every function, by name and turn. All of them take turns."""

    def turn(work: Callable[[], object], count: int) -> Callable[[], object]:
        def run() -> None:
            with threads(count):
                work()

        return run

    turns = {
        f"{name}/{which}": turn(work, count) for name, work in works.items() for which, count in TURNS.items()
    }
    times = interleaved(turns, repeats)
    return {name: {which: times[f"{name}/{which}"].fastest for which in TURNS} for name in works}
