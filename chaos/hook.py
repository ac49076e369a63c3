"""Where strace is missing: Python's own audit events, before which the process is killed or an error is raised.

It sees what Python does to files (open, rename, remove, mkdir, rmdir, chmod, fsync), not single writes, and not what
the libraries under it do.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "chaos.fsync")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def changes(event: str, values: tuple[Any, ...], folder: Path) -> bool:
    """Whether an event is about to change what is in the folder."""
    if event == "open":
        path, _, flags = values
        return isinstance(path, str) and path.startswith(str(folder)) and bool(flags & WRITING)
    if event not in EVENTS or not values:
        return False
    return event == "chaos.fsync" or str(values[0]).startswith(str(folder))


def hooked(do: Callable[[], None], folder: Path, at: Callable[[int, str], None]) -> Callable[[], None]:
    """What a child does instead: the same, with `at` called before every change with its number, from 1."""

    def work() -> None:
        count, flush = 0, os.fsync

        def watch(event: str, values: tuple[Any, ...]) -> None:
            nonlocal count
            if changes(event, values, folder):
                count += 1
                at(count, f"{event} {values[0]}")

        def fsync(handle: int) -> None:
            sys.audit("chaos.fsync", handle)
            flush(handle)

        os.fsync = fsync
        sys.addaudithook(watch)
        do()

    return work


def harm_at(number: int, harm: str) -> Callable[[int, str], None]:
    """Kill the process before its so-manieth change, or let that fail."""

    def at(count: int, shown: str) -> None:
        if count != number:
            return
        if harm == "KILL":
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, harm)
        raise OSError(code, os.strerror(code), shown)

    return at
