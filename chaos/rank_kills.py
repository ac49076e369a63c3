"""Ranks that are killed or stopped at random moments: all are started again, and end with the same weights."""

import os
import random
import shutil
import signal
import time
import warnings
from functools import partial
from pathlib import Path

import torch._dynamo  # noqa: F401  (torch's wrappers import it, which takes seconds: once here, and not in every fork)
from torch.distributed import TCPStore

import segue
from cases import recipe, small_corpus
from children import Ended, ended, started
from kills import difference
from segue.recipe import Recipe
from tally import Tally

PATIENCE = 10
"""Seconds that ranks wait for one that does not answer, where one may be stopped."""

LEFT_ALONE = 300
"""The same where none is: on a busy machine a rank may be slow to answer."""

STEPS = 30


def attack(folder: Path, harms: int, seed: int) -> Tally:
    """Kill or stop one rank of two or four, so often in all."""
    tally, draw = Tally("ranks killed or stopped (2 and 4 processes)"), random.Random(seed)
    folder.mkdir(parents=True)
    corpus = small_corpus(folder, 2000)
    plan = recipe(STEPS, lanes=4, keep=2)
    whole = {size: folder / f"whole-{size}" for size in (2, 4)}
    for size, run in whole.items():
        found = _started(size, plan, corpus, run, folder, attempt=0, patience=LEFT_ALONE)
        _ended(found, folder)
    while tally.outcomes["killed"] + tally.outcomes["stopped"] < harms:
        size = draw.choice((2, 4))
        shutil.rmtree(folder / "run", ignore_errors=True)
        wrong = _disturbed(size, plan, corpus, folder, draw, tally) or difference(folder / "run", whole[size])
        if wrong:
            tally.lose(f"{size} ranks: {wrong}")
        else:
            tally.count("runs that ended with the same bytes")
    return tally


def _disturbed(size: int, plan: Recipe, corpus: Path, folder: Path, draw: random.Random, tally: Tally) -> str:
    """A run whose ranks are disturbed three times, and then left alone."""
    for attempt in range(4):
        patience = PATIENCE if attempt < 3 else LEFT_ALONE
        processes = _started(size, plan, corpus, folder / "run", folder, attempt, patience)
        victim = draw.randrange(size)
        time.sleep(draw.random() * 1.5)
        if attempt < 3:
            stop = draw.random() < 0.3
            os.kill(processes[victim], signal.SIGSTOP if stop else signal.SIGKILL)
        found = _ended(processes, folder, stopped=victim if attempt < 3 and stop else None)
        if all(one.code == 0 for one in found):
            return ""
        if attempt == 3:
            return f"fails undisturbed: {found[0].said[-300:]}"
        tally.count("stopped" if stop else "killed")
        for rank, one in enumerate(found):
            if "Traceback" in one.said and "segue.errors" not in one.said:
                return f"rank {rank}: a traceback: {one.said[-300:]}"
    return "never ended"


def _started(
    size: int, plan: Recipe, corpus: Path, run: Path, folder: Path, attempt: int, patience: int
) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )  # a port that nobody else gets
    _STORES.append(store)
    del _STORES[:-2]

    def work(rank: int) -> None:
        told = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": store.port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": attempt,
            "SEGUE_RANK_TIMEOUT": patience,
        }
        os.environ.update({name: str(value) for name, value in told.items()})
        segue.train(plan, corpus, run)

    return [started(partial(work, rank), folder / f"said-{rank}") for rank in range(size)]


_STORES: list[TCPStore] = []
"""Kept as long as ranks may ask them."""


def _ended(processes: list[int], folder: Path, stopped: int | None = None) -> list[Ended]:
    """As torchrun would: the others end by themselves, then what is stopped is killed."""
    order = sorted(range(len(processes)), key=lambda rank: rank == stopped)
    found = {}
    for rank in order:
        if rank == stopped:
            os.kill(processes[rank], signal.SIGKILL)
        found[rank] = ended(processes[rank], folder / f"said-{rank}")
    return [found[rank] for rank in range(len(processes))]
