"""Children of a process that has imported everything: they start at once, and can be stopped, traced and killed."""

import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

SECONDS = 120
"""After which a child hangs."""


class Ended(NamedTuple):
    """How a child ended: its exit code, negative for a signal, and what it said on both streams."""

    code: int
    said: str


def command(*words: object) -> Callable[[], None]:
    """What a child does to run `segue` with these words."""

    def run() -> None:
        from segue.cli import main

        sys.argv = ["segue", *map(str, words)]
        main()

    return run


def started(do: Callable[[], None], said: Path, *, waiting: bool = False) -> int:
    """Fork a child that does something; `waiting`, it stops before it begins. Returns its process number."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks beside threads: they only wait
        child = os.fork()
    if child:
        return child
    code = 3
    try:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for theirs, ours in ((null, 0), (file, 1), (file, 2)):
            os.dup2(theirs, ours)
        streams = (
            (0, "r"),
            (1, "w"),
            (2, "w"),
        )  # closefd: a child's child would close its own when it replaces them
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in streams)
        torch.set_num_threads(1)
        if waiting:
            os.kill(os.getpid(), signal.SIGSTOP)
        do()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:  # a traceback is what the parent looks for
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def ended(child: int, said: Path) -> Ended:
    """Wait for a child; one that hangs is killed."""
    end = time.monotonic() + SECONDS
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return Ended(os.waitstatus_to_exitcode(status), said.read_text(errors="replace"))
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ended(-99, f"hung for {SECONDS} s; {said.read_text(errors='replace')}")
        time.sleep(0.001)


def run(do: Callable[[], None], said: Path) -> Ended:
    """Let a child do something, undisturbed."""
    return ended(started(do, said), said)


def traced(do: Callable[[], None], said: Path, options: Sequence[str]) -> Ended:
    """The same under strace, which may inject a signal or an error into one system call."""
    child = started(do, said, waiting=True)
    os.waitpid(child, os.WUNTRACED)
    words = ["strace", "-f", "-qq", "-y", *options, "-p", str(child)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as tracer:
        while tracer.poll() is None and not _is_traced(child):
            time.sleep(0.0005)
        os.kill(child, signal.SIGCONT)
        found = ended(child, said)
        _, error = tracer.communicate()
    if b"attach" in error or b"ptrace" in error:
        raise RuntimeError(f"strace could not trace: {error.decode()}")
    return found


def _is_traced(child: int) -> bool:
    status = Path(f"/proc/{child}/status").read_text()
    return "TracerPid:\t0\n" not in status
