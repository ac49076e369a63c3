"""A second pool of threads exists while other processes are busy, and ends when they are not."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from segue.cli import busy


def test_a_pool_is_held_while_others_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(0.0, 0.0), (0.1, 1.0), (1.1, 2.0), (2.0, 3.0), (2.1, 4.0), (3.1, 5.0), None])
    pools: list[Any] = []
    held: list[int] = []

    class Pool:
        def __init__(self) -> None:
            self.held = True
            pools.append(self)

        def release(self) -> None:
            self.held = False

    def look() -> tuple[float, float] | None:
        held.append(sum(pool.held for pool in pools))
        return next(looks)

    monkeypatch.setattr(busy, "PERIOD", 0)
    monkeypatch.setattr(busy, "_used", look)
    monkeypatch.setattr(busy, "_IdlePool", Pool)
    busy._watch(threading.Event())
    assert held == [0, 0, 0, 1, 1, 0, 1], "held from the second second to the fourth, and again at the end"
    assert len(pools) == 2
    assert not any(pool.held for pool in pools), "nothing outlives the watch"


def test_the_watch_and_its_pool_end_before_the_interpreter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread in torch's code while Python ends would abort the process, after all its work was done."""
    before = set(threading.enumerate())  # another test of this process may have left its own watch
    looks = iter([(0.0, 0.0), *((float(second), float(second)) for second in range(1, 1000))])
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(busy, "PERIOD", 0.01)
    monkeypatch.setattr(busy, "_used", lambda: next(looks))
    monkeypatch.setattr(busy, "WATCHING", set())
    monkeypatch.setattr(busy.atexit, "register", lambda do, *given: ends.append(partial(do, *given)))
    busy.watch_others()
    deadline = time.monotonic() + 30
    while "segue-pool" not in _names_but(before) and time.monotonic() < deadline:
        pass
    assert _names_but(before) == {"segue-busy", "segue-pool"}
    ends[0]()
    assert not _names_but(before)


def _names_but(before: set[threading.Thread]) -> set[str]:
    """The names of our threads that have begun since."""
    return {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("segue-")}


def test_what_others_take_is_told_or_nothing_is_done() -> None:
    taken = busy._used()
    assert (taken is None) == (not Path("/proc/stat").exists())
    if taken is not None:
        assert taken[0] > 0


def test_a_process_watches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(busy, "WATCHING", set())
    monkeypatch.setattr(busy, "_watch", lambda _: begun.append("watching"))
    for _ in range(3):
        busy.watch_others()
    for thread in threading.enumerate():
        if thread.name == "segue-busy":
            thread.join(timeout=1)
    assert begun == ["watching"]
    assert {os.getpid()} == busy.WATCHING
