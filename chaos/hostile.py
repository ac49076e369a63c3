"""Hostile files: everything that segue reads, mutated, in worker processes that may use only so much memory and time.

Each case is drawn from its number and the seed. What is wrong with a file must be told in one line; a traceback, a
crash, more memory or time than is allowed, and anything written outside its folder are losses.
"""

import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from ours import ours
from segue.errors import SegueError
from tally import Tally
from targets import Target
from theirs import theirs

WORKERS = 2
MEMORY = 2 * 2**30
"""Bytes of addresses that a worker may have besides those it begins with."""

SECONDS = 5.0
"""Of the processor's time: a case that takes more hangs."""

PATIENCE = 60.0
"""Seconds after which a case hangs though it does nothing."""

CONTROL = 50
"""Every so-manieth case is not mutated, and must be read."""

LONGEST = 2000
"""Characters of an error that is one line."""

REFUSED, READ, UNHARMED = "refused in one line", "read all the same", "read, not mutated"


def attack(folder: Path, count: int = 200_000, seed: int = 0) -> Tally:
    """Mutate `count` files, and try to read them."""
    tally, begin = Tally("hostile files"), time.monotonic()
    known = targets(folder / "made")
    workers = {
        _started(folder, known, range(number, count, WORKERS), seed): number for number in range(WORKERS)
    }
    while workers:
        time.sleep(0.01)
        for child, number in list(workers.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            del workers[child]
            code, last = os.waitstatus_to_exitcode(status), _counted(folder / f"cases-{number}", tally)
            if code:  # in the middle of a case: go on behind it
                assert last >= 0, f"a worker could not begin: {_ended(code)}"
                name = drawn(known, last, seed)[1].name
                tally.parts[name] += 1
                tally.lose(f"case {last}, {name}: {_ended(code)}")
                workers[_started(folder, known, range(last + WORKERS, count, WORKERS), seed)] = number
    tally.seconds = time.monotonic() - begin
    return tally


def targets(made: Path) -> list[Target]:
    """Everything that segue reads."""
    made.mkdir(parents=True)
    return [*ours(made), *theirs(made)]


def _ended(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"took more than {SECONDS:g} s of the processor's time"
    return f"hung for {PATIENCE:g} s" if code == -signal.SIGALRM else f"the process ended with {code}"


def _counted(cases: Path, tally: Tally) -> int:
    """Count what a worker has written down, and return the number of the case that it began last."""
    last = -1
    for line in cases.read_text().splitlines():
        number, name, outcome, told = line.split("\t", 3)
        last = int(number)
        if not outcome:
            continue
        tally.parts[name] += 1
        if outcome == "lost":
            tally.lose(f"case {number}, {name}: {told}")
        else:
            tally.count(outcome)
    cases.unlink()
    return last


def _started(folder: Path, known: Sequence[Target], numbers: range, seed: int) -> int:
    """Fork a worker for these cases."""
    cases = folder / f"cases-{numbers.start % WORKERS}"
    cases.touch()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks beside threads: they only wait
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        _work(folder / f"worker-{numbers.start % WORKERS}" / "inside", cases, known, numbers, seed)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _work(inside: Path, cases: Path, known: Sequence[Target], numbers: range, seed: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ResourceWarning)
    inside.mkdir(parents=True, exist_ok=True)
    for target in known:
        _write(inside / str(known.index(target)), target.files, target.files)
    limit = _addresses() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with cases.open("w") as file:
        for number in numbers:
            draw, target = drawn(known, number, seed)
            place = inside / str(known.index(target))
            file.write(f"{number}\t{target.name}\t\t\n")
            file.flush()
            _limited(SECONDS, PATIENCE)
            outcome, told = tried(target, place, draw, mutate=number % CONTROL > 0)
            _limited(0, 0)
            told = " ".join(told.encode(errors="replace").decode().split())[:500]
            file.write(f"{number}\t{target.name}\t{outcome}\t{told}\n")


def _limited(seconds: float, patience: float) -> None:
    """End the process after this much of the processor's time, or of any time: other work must not look like a hang."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, patience)


def _addresses() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def drawn(known: Sequence[Target], number: int, seed: int) -> tuple[random.Random, Target]:
    """The random numbers of a case, and what it mutates."""
    draw = random.Random(seed * 2**32 + number)
    return draw, draw.choices(known, [target.share for target in known])[0]


def anew(path: Path, text: bytes) -> None:
    """Write a file in place of another. (Some file systems wait for the disk when a file is emptied to be filled.)"""
    path.unlink(missing_ok=True)
    path.write_bytes(text)


def _write(place: Path, files: Mapping[str, bytes], names: Iterable[str]) -> None:
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        anew(path, files[name])


def tried(target: Target, place: Path, draw: random.Random, *, mutate: bool) -> tuple[str, str]:
    """Mutate one file of a target, read it, and put it back; what came of it, and what there is to tell."""
    name = draw.choice(list(target.hits))
    before = _around(place)
    if mutate:
        anew(place / name, target.hits[name](draw, target.files[name]))
        target.mend(place)
    here = Path.cwd()
    os.chdir(place)  # where a hostile file would begin
    try:
        outcome, told = _read(target, place)
    finally:
        os.chdir(here)
    if not mutate:
        outcome = UNHARMED if outcome == READ else "lost"
    if _around(place) != before:
        outcome, told = "lost", f"something was written outside: {_around(place) - before}"
    _put_back(target, place, name)
    return outcome, f"{name}: {told}"


def _around(place: Path) -> set[str]:
    """What is in the two folders above."""
    return {*os.listdir(place.parent), *os.listdir(place.parent.parent)}  # noqa: PTH208 (every case waits for it)


def _read(target: Target, place: Path) -> tuple[str, str]:
    try:
        target.read(place)
    except SegueError as error:
        told = str(error)
        return ("lost", f"not one line: {told!r}") if "\n" in told or len(told) > LONGEST else (REFUSED, told)
    except BaseException as error:  # such as a panic of a library in Rust
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            "lost",
            f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}",
        )
    return READ, ""


def _put_back(target: Target, place: Path, hit: str) -> None:
    """The files as they were, and no others."""
    for path in place.iterdir() if target.grows else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _write(place, target.files, target.files if target.grows else [hit, *target.mended])
