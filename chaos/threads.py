"""Forks of one memory read by many threads at once, compared bit by bit with what one thread reads."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from segue.config import Reach
from segue.nn.frozen import FrozenXL
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL
from support import build, shape, some_tokens
from tally import Tally

Read = list[Tensor]
"""Hidden states and memory rows, one after the other."""


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@torch.no_grad()
def read_on(engine: FrozenXL, memory: Memory, tokens: Tensor) -> Read:
    """Token by token from a fork; the middle of the way is read from twice."""
    found: Read = []
    for token in tokens.split(1, dim=1):
        hidden, after = engine(token, memory)
        again, _ = engine(token, memory)
        found += [hidden, again, *after.rows]
        memory = after
    return found


def different(first: Read, second: Read) -> bool:
    return not all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def stress(*, rounds: int, steps: int = 3, threads: int = 8, model: TransformerXL | None = None) -> int:
    """How many of `rounds * threads` forks differ from the same fork read by one thread. Should be 0."""
    engine = (model or build(shape())).frozen()
    wrong, gate = 0, threading.Barrier(threads)

    def fork(memory: Memory, tokens: Tensor) -> Read:
        gate.wait()
        return read_on(engine, memory, tokens)

    with quick_switches(), ThreadPoolExecutor(threads) as pool:
        for number in range(rounds):
            with torch.no_grad():
                begin = engine.start(reach=Reach(memory=12))
                _, parent = engine(some_tokens(1, 1 + number % 9, seed=number), begin)
            ways = [some_tokens(1, steps, seed=number * threads + lane) for lane in range(threads)]
            together = list(pool.map(fork, [parent] * threads, ways))
            alone = [read_on(engine, parent, way) for way in ways]
            wrong += sum(map(different, together, alone))
    return wrong


def attack(rounds: int, seed: int) -> Tally:
    """The same for several kinds of models, counted in steps of threads."""
    tally, threads, steps = Tally("forks of a memory read by 8 threads, steps"), 8, 3
    for encoding in ("xl", "shaw", "none"):
        wrong = stress(rounds=rounds // 3, steps=steps, threads=threads, model=build(shape(encoding), seed))
        tally.outcomes["the same as one thread"] += 2 * steps * (rounds // 3 * threads - wrong)
        for _ in range(wrong):
            tally.lose(f"{encoding}: a fork read by a thread differs")
    return tally
