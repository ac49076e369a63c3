"""What torchrun says about this process: rank, world size, rendezvous, device; and the processor. Knows no torch."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from segue.errors import ConfigError, OtherRankError, SegueError

REQUIRED_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets. Any other launcher must set them too."""

TIMEOUT_VARIABLE = "SEGUE_RANK_TIMEOUT"
"""Environment variable: seconds that a rank waits for the others before it gives up; 600 if it is not set."""


@dataclass(frozen=True)
class Rendezvous:
    """How the ranks connect to each other, and for how long they wait."""

    rank: int
    world_size: int
    host: str
    port: int
    timeout: float  # seconds
    restarts: int  # how often torchrun has started the ranks again
    agent_store: bool  # torchrun's agent serves the key-value store; else rank 0 does


def rendezvous() -> Rendezvous | None:
    """The rendezvous that the environment describes; None if this process is alone."""
    if not _launched() or os.environ.get("WORLD_SIZE") == "1":
        return None
    missing = [name for name in REQUIRED_VARIABLES if not os.environ.get(name)]
    if missing:
        raise launch_error(
            f"several processes were started, but {', '.join(missing)} is not set; "
            "start them with: torchrun --nproc-per-node N -m segue train …"
        )
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not os.environ[name].isdigit():
            raise launch_error(f"{name} should be a number; found {os.environ[name]!r}")
    timeout = os.environ.get(TIMEOUT_VARIABLE, "600")
    if not re.fullmatch(r"\d+(\.\d+)?", timeout) or not float(timeout):
        raise launch_error(f"{TIMEOUT_VARIABLE} should be a number of seconds; found {timeout!r}")
    rank, world_size, host, port = (os.environ[name] for name in REQUIRED_VARIABLES)
    agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Rendezvous(
        int(rank), int(world_size), host, int(port), float(timeout), restart_count(), agent_store
    )


def launch_error(message: str) -> SegueError:
    """An error that every rank finds by itself, before the ranks are connected. Only rank 0 shows it."""
    other = os.environ.get("RANK", "0") not in ("", "0")
    return OtherRankError(message) if other else ConfigError(message)


def restart_count() -> int:
    """How often torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)


def launch_id() -> str:
    """Torchrun's run id: the same on all ranks, and after a restart; empty if there is none."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


def local_device(device: str) -> str:
    """The device of this rank: under torchrun, `cuda` means the GPU with the number of the local rank."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and _launched() else device


def local_world_size() -> int:
    """The number of ranks on this machine, this one included."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))


def _launched() -> bool:
    return any(name in os.environ for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"))


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
