"""Several processes on this machine, each a rank, as torchrun would start them but at once: they are forks."""

import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch's wrappers import it, which takes seconds: once here, and not in every fork
from torch.distributed import TCPStore

MAX_SECONDS = 400
"""After so long a test hangs, and its ranks are killed."""

GRACE = 10
"""Seconds for the other ranks to end after one has failed."""


@dataclass(frozen=True)
class Ended:
    """How a rank ended, and what it said."""

    code: int
    said: str


def on_ranks(
    size: int, folder: Path, work: Callable[..., Any], *values: Any, **environment: str
) -> list[Ended]:
    """Let every rank do the work, and wait for all of them."""
    folder.mkdir(exist_ok=True)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a port that nobody else gets
    fork = multiprocessing.get_context("fork")
    processes = []
    for rank in range(size):
        told = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": store.port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "SEGUE_RANK_TIMEOUT": 60,
            **environment,
        }
        process = fork.Process(target=_rank, args=(folder / f"said-{rank}", told, work, values))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of forks beside threads; the store's is harmless
            process.start()
        processes.append(process)
    _wait(processes)
    return [
        Ended(process.exitcode or 0, (folder / f"said-{rank}").read_text())
        for rank, process in enumerate(processes)
    ]


def _wait(processes: Sequence[BaseProcess]) -> None:
    """As torchrun does: if one fails, the others are given a little time and ended."""
    end = time.monotonic() + MAX_SECONDS
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        time.sleep(0.02)
        if any(process.exitcode for process in processes):
            end = min(end, time.monotonic() + GRACE)
    for process in processes:
        process.kill()
        process.join()


def succeeded(ended: list[Ended]) -> None:
    for rank, one in enumerate(ended):
        assert one.code == 0, f"rank {rank}: {one.said}"


def _rank(said: Path, told: dict[str, Any], work: Callable[..., Any], values: tuple[Any, ...]) -> None:
    os.environ.update({name: str(value) for name, value in told.items()})
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        torch.set_num_threads(1)
        try:
            work(*values)
        except SystemExit as leaving:
            file.flush()
            os._exit(int(leaving.code or 0))
        except BaseException:
            traceback.print_exc()
            file.flush()
            os._exit(3)
