"""Threads that do not spin while others compute.

OpenMP's idle threads spin for milliseconds, in case more work comes. Alone that is fastest. Beside another busy process
it takes the core that the slowest thread waits for. GNU's OpenMP spins three hundred times less once a process has more
of its threads than there are cores; so while others compute, a second pool of threads is held, which does nothing.
The number of threads that share the work stays as it is, and so does every bit of the result.
"""

import os
import threading
import time

PERIOD = 0.5
"""Seconds between two looks at the machine."""

SHARE = 0.25
"""Of one core: others that take more than this are busy."""


WATCHING: set[int] = set()
"""The process that is watching already: this one, or the one that it is a fork of."""


def watch_others() -> None:
    """Look after the machine in the background, for as long as the process lives."""
    if os.getpid() not in WATCHING:
        WATCHING.add(os.getpid())
        threading.Thread(target=_watch, daemon=True, name="segue-busy").start()


def _watch() -> None:
    held: threading.Event | None = None
    before = _taken()
    while before is not None:
        time.sleep(PERIOD)
        now = _taken()
        if now is None:
            return
        busy = now[0] - before[0] > SHARE * (now[1] - before[1])
        before = now
        if busy and held is None:
            held = threading.Event()
            threading.Thread(target=_hold, args=(held,), daemon=True, name="segue-pool").start()
        elif not busy and held is not None:
            held.set()
            held = None


def _hold(until: threading.Event) -> None:
    """A pool of this thread's own, made by its first product and gone with the thread."""
    import torch

    torch.ones(2**18).exp()
    until.wait()


def _taken() -> tuple[float, float] | None:
    """Seconds that other processes have taken of the cores that are ours, and the time. None where nobody tells."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123  (a line at a time)
            lines = [line.split() for line in file if line.startswith("cpu") and line[3] != " "]
    except OSError:
        return None
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    taken = sum(
        int(value) for name, *values in lines if name in ours for value in (*values[:3], *values[5:7])
    )
    own = os.times()
    return taken / ticks - own.user - own.system, time.monotonic()
