"""Every system call that changes the disk, one by one: the process is killed there, or the call fails.

First the call is made once under strace, undisturbed, to learn which calls it makes on the folder in question; then
once for each of them with SIGKILL, and once with each error that a disk may give. Without strace, a hook does the same
with what Python itself is about to change (`hook.py`).
"""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from children import Ended, run, traced
from hook import harm_at, hooked
from tally import Tally

CALLS = (
    *("write", "pwrite64", "writev", "ftruncate", "fallocate", "fsync", "fdatasync", "fchmod", "chmod"),
    *("openat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"),
    *("sendfile", "copy_file_range", "msync"),
)
ERRORS = ("ENOSPC", "EIO", "EDQUOT")
HARMS = ("KILL", *ERRORS)

LINE = re.compile(r"^\d+ +(\w+)\((.*)")


class Point(NamedTuple):
    """One call: its name, the how-manieth of that name, and its arguments as strace shows them."""

    call: str
    number: int
    shown: str


@dataclass(frozen=True)
class Case:
    """A command under attack."""

    name: str
    prepare: Callable[[Path], None]  # what is in the folder before
    do: Callable[[Path], Callable[[], None]]  # the command, in a folder
    whole: Callable[[Path], str]  # after the command was disturbed and done again: what is wrong, or nothing
    again: Callable[[Path], Callable[[], None]] | None = None  # another command to go on with after a kill


@cache
def available() -> bool:
    """Whether strace is there and may trace."""
    return (
        shutil.which("strace") is not None
        and not subprocess.run(
            ["strace", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True
        ).returncode
    )


def points(case: Case, folder: Path, log: Path) -> list[Point]:
    """The calls of a command that change what is in its folder."""
    said = log.with_suffix(".said")
    if not available():
        return _hooked_points(case, folder, log, said)
    found = traced(case.do(folder), said, ["-s", "0", "-o", str(log), "-e", f"trace={','.join(CALLS)}"])
    assert found.code == 0, f"{case.name} fails undisturbed: {found.said}"
    numbers: Counter[str] = Counter()
    kept = []
    for line in log.read_text(errors="replace").splitlines():
        if match := LINE.match(line):
            call, shown = match.groups()
            numbers[call] += 1
            changes = call != "openat" or "O_CREAT" in shown
            if changes and str(folder) in shown:
                kept.append(Point(call, numbers[call], shown[:120]))
    return kept


def _hooked_points(case: Case, folder: Path, log: Path, said: Path) -> list[Point]:
    def note(number: int, shown: str) -> None:
        with log.open("a") as file:
            file.write(f"{number} {shown}\n")

    log.write_text("")
    found = run(hooked(case.do(folder), folder, note), said)
    assert found.code == 0, f"{case.name} fails undisturbed: {found.said}"
    lines = [line.partition(" ") for line in log.read_text().splitlines()]
    return [Point("hook", int(number), shown[:120]) for number, _, shown in lines]


def harmed(case: Case, place: Path, said: Path, point: Point, harm: str) -> Ended:
    """The command, with one call disturbed."""
    if point.call == "hook":
        return run(hooked(case.do(place), place, harm_at(point.number, harm)), said)
    what = "signal=KILL" if harm == "KILL" else f"error={harm}"
    options = ["-o", "/dev/null", "-e", f"trace={point.call}"]
    inject = ["-e", f"inject={point.call}:{what}:when={point.number}"]
    return traced(case.do(place), said, [*options, *inject])


def attack(case: Case, folder: Path, harms: Iterable[str] = HARMS, every: int = 1) -> Tally:
    """Disturb a command at its every call (or every so-manieth) in every way."""
    tally = Tally(f"system calls: {case.name}")
    template, place, log = folder / "template", folder / "place", folder / "trace"
    template.mkdir(parents=True)
    case.prepare(template)
    fresh(template, place)
    known = points(case, place, log)
    for number, (point, harm) in enumerate((point, harm) for point in known for harm in harms):
        if number % every:
            continue
        fresh(template, place)
        wrong = disturbed(case, place, folder / "said", point, harm, tally)
        if wrong:
            tally.lose(f"{harm} at {point.call} {point.number} ({point.shown}): {wrong}")
    return tally


def fresh(template: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place, symlinks=True)


def disturbed(case: Case, place: Path, said: Path, point: Point, harm: str, tally: Tally) -> str:
    """What is wrong after one call was disturbed; counts how the command ended."""
    found = harmed(case, place, said, point, harm)
    tally.count("killed" if found.code == -9 else "told in one line" if found.code else "done all the same")
    if harm == "KILL" and found.code not in (0, -9):
        return f"ended with {found.code}: {found.said[-300:]}"
    if harm != "KILL" and (wrong := told_badly(found)):
        return wrong
    again = run((case.again or case.do)(place), said)
    if again.code and "exists" not in again.said:
        return f"cannot be done again: {again.said[-300:]}"
    left = [path.relative_to(place) for path in leftovers(place)]
    return f"leaves {left[0]}" if left else case.whole(place)


def told_badly(found: Ended) -> str:
    """An error is one line, with exit code 1."""
    lines = [line for line in found.said.splitlines() if line.startswith("segue: ")]
    if "Traceback" in found.said:
        return f"a traceback: {found.said[-300:]}"
    if found.code not in (0, 1) or (found.code == 1 and len(lines) != 1):
        return f"ended with {found.code}: {found.said[-300:]}"
    return ""


def leftovers(place: Path) -> Iterator[Path]:
    return (path for path in place.rglob("*") if ".segue-" in path.name or path.name.endswith(".parts"))
