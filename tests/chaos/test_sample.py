"""A sample of `make chaos`: a little of every attack, with nothing lost; and proof that a loss would be counted."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

import kills
import rank_kills
import syscalls
import threads
from cases import cases
from children import command, run
from syscalls import Case

SAMPLED = {"train --resume": 11, "prepare": 5, "average, replacing a bundle": 7, "train --from": 61}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {case.name: case for case in cases(tmp_path_factory.mktemp("chaos") / "shared")}


@pytest.mark.parametrize("name", SAMPLED)
def test_disturbed_system_calls_lose_nothing(name: str, known: dict[str, Case], tmp_path: Path) -> None:
    tally = syscalls.attack(known[name], tmp_path / "place", every=SAMPLED[name])
    assert not tally.losses
    assert tally.tried > 5
    assert tally.outcomes["killed"] > 0
    assert tally.outcomes["told in one line"] > 0


def test_a_command_that_writes_in_place_is_found_out(tmp_path: Path) -> None:
    """The suite can fail: a writer that truncates first, as others do, loses the old file."""

    def written(folder: Path) -> None:
        with (folder / "file").open("w") as file:
            file.write("old or new")

    case = Case(
        "writing in place",
        written,
        lambda folder: partial(written, folder),
        lambda folder: "" if (folder / "file").read_text() else "the old file is gone",
        again=lambda _: lambda: None,
    )
    tally = syscalls.attack(case, tmp_path / "place")
    assert tally.lost > 0
    assert any("a traceback" in loss or "the old file is gone" in loss for loss in tally.losses)


@pytest.mark.parametrize("name", ["train --resume", "average, replacing a bundle"])
def test_without_strace_a_hook_disturbs_instead(
    name: str, known: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syscalls, "available", lambda: False)
    tally = syscalls.attack(known[name], tmp_path / "place", every=9)
    assert not tally.losses
    assert tally.outcomes["killed"] > 0
    assert tally.outcomes["told in one line"] > 0


def test_killed_training_ends_with_the_same_bytes(tmp_path: Path) -> None:
    tally = kills.attack(tmp_path / "place", kills=12, seed=5)
    assert not tally.losses
    assert tally.outcomes["killed"] >= 12
    assert tally.outcomes["runs that ended with the same bytes"] > 0


def test_killed_and_stopped_ranks_end_with_the_same_bytes(tmp_path: Path) -> None:
    tally = rank_kills.attack(tmp_path / "place", harms=2, seed=1)
    assert not tally.losses
    assert tally.outcomes["runs that ended with the same bytes"] > 0


def test_threads_read_what_one_thread_reads() -> None:
    tally = threads.attack(rounds=30, seed=3)
    assert not tally.losses
    assert tally.tried == 30 * 8 * 3 * 2


def test_a_child_that_fails_is_seen(tmp_path: Path) -> None:
    found = run(command("info", "no such preset"), tmp_path / "said")
    assert found.code == 1
    assert found.said.startswith("segue: ")
    assert run(lambda: os.kill(os.getpid(), signal.SIGKILL), tmp_path / "said").code == -9
