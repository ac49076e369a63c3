"""Hostile files: a sample of what `chaos/hostile.py` tries in full, and that it would notice a loss."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import hostile
from hostile import READ, REFUSED, UNHARMED, attack, tried
from mutations import mutated_json
from segue.errors import InputError
from targets import Target


def target(read: Callable[[Path], object], text: bytes = b'{"a": 1}') -> Target:
    return Target("it", {"it.json": text}, {"it.json": mutated_json}, read)


def outcome(read: Callable[[Path], object], folder: Path, *, mutate: bool = True) -> str:
    place = folder / "worker" / "inside" / "it"
    place.mkdir(parents=True, exist_ok=True)
    (place / "it.json").write_bytes(b'{"a": 1}')
    return tried(target(read), place, random.Random(0), mutate=mutate)[0]


def refusing(_: Path) -> None:
    raise InputError("no")


def failing(_: Path) -> None:
    raise KeyError("a traceback")


def test_whatever_is_read_is_refused_in_one_line_or_makes_sense(tmp_path: Path) -> None:
    tally = attack(tmp_path, count=400, seed=5)
    assert tally.losses == []
    assert tally.tried == 400
    assert tally.outcomes[UNHARMED] == 400 // hostile.CONTROL
    assert tally.outcomes[REFUSED] > tally.outcomes[READ] > 50
    assert len(tally.parts) > 30


def test_outcomes_are_told_apart(tmp_path: Path) -> None:
    assert outcome(lambda _: None, tmp_path) == READ
    assert outcome(refusing, tmp_path) == REFUSED
    assert outcome(failing, tmp_path) == "lost"


def test_what_is_not_mutated_must_be_read(tmp_path: Path) -> None:
    assert (
        outcome(lambda place: json.loads((place / "it.json").read_text()), tmp_path, mutate=False) == UNHARMED
    )
    assert outcome(refusing, tmp_path, mutate=False) == "lost"


def test_what_is_written_outside_is_a_loss(tmp_path: Path) -> None:
    assert outcome(lambda _: Path("../canary").touch(), tmp_path) == "lost"
    assert outcome(lambda _: Path("../../evil").touch(), tmp_path) == "lost"


def crash(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(_: Path) -> None:
    signal.pause()


def toil(_: Path) -> None:
    while True:
        pass


def swell(_: Path) -> None:
    bytes(8 * 2**30)


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (crash, "ended with -9"),
        (hang, "hung for"),
        (toil, "of the processor's time"),
        (swell, "MemoryError"),
        (failing, "KeyError"),
    ],
)
def test_a_worker_that_dies_is_a_loss_and_the_others_cases_go_on(
    read: Callable[[Path], None], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "targets", lambda _: [target(read)])
    monkeypatch.setattr(hostile, "SECONDS", 0.2)
    monkeypatch.setattr(hostile, "PATIENCE", 2.0 if read is hang else 60.0)  # a busy machine is slow to toil
    tally = attack(tmp_path, count=6, seed=0)
    assert tally.lost == tally.tried == 6
    assert all(told in loss for loss in tally.losses)
