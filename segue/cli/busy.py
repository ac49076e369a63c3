"""Less spinning of idle OpenMP threads while other processes are busy.

OpenMP's idle threads spin for milliseconds, in case more work comes. On an idle machine that is fastest. Beside another
busy process, a spinning thread takes the core that the slowest thread waits for. GNU's OpenMP spins three hundred times
less once a process has more of its threads than there are cores. So while other processes are busy, a second pool of
threads is created, which does nothing. The number of threads that share the work does not change, so results are equal
to the last bit.
"""

import atexit
import os
import threading
import time

PERIOD = 0.5
"""Seconds between two measurements of the machine's load."""

SHARE = 0.25
"""The share of one core above which other processes count as busy."""

WATCHING: set[int] = set()
"""The ids of processes that watch already; a fork inherits its parent's id, and starts its own watch."""


def watch_others() -> None:
    """Start a background thread that watches the machine's load as long as the process lives.

    It is ended before the interpreter is: a thread that is in torch's code at that moment would abort the process.
    """
    if os.getpid() not in WATCHING:
        WATCHING.add(os.getpid())
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(ended,), daemon=True, name="segue-busy")
        watch.start()
        atexit.register(_end, watch, ended)


def _end(watch: threading.Thread, ended: threading.Event) -> None:
    ended.set()
    watch.join()


def _watch(ended: threading.Event) -> None:
    pool: _IdlePool | None = None
    before = _used()
    while before is not None and not ended.wait(PERIOD):
        now = _used()
        if now is None:
            break
        busy = now[0] - before[0] > SHARE * (now[1] - before[1])
        before = now
        if busy and pool is None:
            pool = _IdlePool()
        elif not busy and pool is not None:
            pool.release()
            pool = None
    if pool is not None:
        pool.release()


class _IdlePool:
    """An OpenMP pool of a thread of its own, created by its first operation; it ends with the thread."""

    def __init__(self) -> None:
        self._until = threading.Event()
        self._thread = threading.Thread(target=self._hold, daemon=True, name="segue-pool")
        self._thread.start()

    def _hold(self) -> None:
        import torch

        torch.ones(2**18).exp()
        self._until.wait()

    def release(self) -> None:
        self._until.set()
        self._thread.join()


def _used() -> tuple[float, float] | None:
    """CPU seconds that other processes have used on our cores, and the time. None without /proc/stat."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123  (a line at a time)
            lines = [line.split() for line in file if line.startswith("cpu") and line[3] != " "]
    except OSError:
        return None
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    used = sum(int(value) for name, *values in lines if name in ours for value in (*values[:3], *values[5:7]))
    own = os.times()
    return used / ticks - own.user - own.system, time.monotonic()
