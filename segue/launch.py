"""Where this process runs: the rank torchrun gave it, of how many, how they meet; the processor. Knows no torch."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from segue.errors import ConfigError, OtherRankError, SegueError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets, and what whoever starts processes by other means must set too."""

TIMEOUT = "SEGUE_RANK_TIMEOUT"
"""Seconds that a rank waits for the others before it gives up; 600 unless this variable says otherwise."""


@dataclass(frozen=True)
class Meeting:
    """Where ranks meet, and for how long they wait for each other."""

    rank: int
    size: int
    host: str
    port: int
    seconds: float
    attempt: int  # how often torchrun has started them again
    hosted: bool  # torchrun keeps the store they meet in; else rank 0 does


def meeting() -> Meeting | None:
    """As the environment says; None if this process is alone."""
    if not _launched() or os.environ.get("WORLD_SIZE") == "1":
        return None
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        raise said(
            f"several processes were asked for and {', '.join(missing)} is not set; "
            "start them with: torchrun --nproc-per-node N -m segue train …"
        )
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not os.environ[name].isdigit():
            raise said(f"{name} should be a number; found {os.environ[name]!r}")
    wait = os.environ.get(TIMEOUT, "600")
    if not re.fullmatch(r"\d+(\.\d+)?", wait) or not float(wait):
        raise said(f"{TIMEOUT} should be a number of seconds; found {wait!r}")
    rank, size, host, port = (os.environ[name] for name in NEEDED)
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Meeting(int(rank), int(size), host, int(port), float(wait), attempt(), hosted)


def said(message: str) -> SegueError:
    """What every rank finds without asking the others: the first says it."""
    other = os.environ.get("RANK", "0") not in ("", "0")
    return OtherRankError(message) if other else ConfigError(message)


def attempt() -> int:
    """How often torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)


def launch_name() -> str:
    """The same for all ranks of a launch, and after a restart of them; empty if it has none."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


def local_device(device: str) -> str:
    """`cuda` is another one for every rank of a machine."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and _launched() else device


def neighbours() -> int:
    """Processes of the same launch on this machine, itself included."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))


def _launched() -> bool:
    return any(name in os.environ for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"))


def processor() -> str:
    """What the machine's processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
