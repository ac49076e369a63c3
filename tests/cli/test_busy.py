"""A second pool of threads exists while other processes are busy, and ends when they are not."""

import os
import threading
from pathlib import Path

import pytest

from segue.cli import busy


def test_a_pool_is_held_while_others_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(0.0, 0.0), (0.1, 1.0), (1.1, 2.0), (2.0, 3.0), (2.1, 4.0), (3.1, 5.0), None])
    told: list[threading.Event] = []
    held: list[list[bool]] = []

    def look() -> tuple[float, float] | None:
        held.append([event.is_set() for event in told])
        return next(looks)

    monkeypatch.setattr(busy, "PERIOD", 0)
    monkeypatch.setattr(busy, "_used", look)
    monkeypatch.setattr(busy, "_idle_pool", told.append)
    busy._watch()
    let_go = [sum(state) for state in held]
    assert let_go == [0, 0, 0, 0, 0, 1, 1], "held from the second second to the fourth, and again at the end"
    assert len(told) == 2


def test_what_others_take_is_told_or_nothing_is_done() -> None:
    taken = busy._used()
    assert (taken is None) == (not Path("/proc/stat").exists())
    if taken is not None:
        assert taken[0] > 0


def test_a_process_watches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(busy, "WATCHING", set())
    monkeypatch.setattr(busy, "_watch", lambda: begun.append("watching"))
    for _ in range(3):
        busy.watch_others()
    for thread in threading.enumerate():
        if thread.name == "segue-busy":
            thread.join(timeout=1)
    assert begun == ["watching"]
    assert {os.getpid()} == busy.WATCHING
