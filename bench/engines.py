"""Engines for reading beside each other and the machine: steps of torch and native ones, exact and in fewer bits.

    python bench/engines.py                 # part of `make bench`; needs no peers
    python bench/engines.py --processor     # one thread, processor time: for a busy machine

The limit is the time that reading a token's bytes takes: weights and relative keys once, keys and values of every
stream. Reading speed is measured in the same turns.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import segue
from machine import THREADS, Times, interleaved
from segue import native
from segue.config import KVCache
from segue.native import SWITCH
from segue.nn.frozen import FrozenXL

LAYERS, WIDTH, HEADS, INNER, MEMORY = 12, 512, 8, 2048, 1600
TABLE = 64 * 2**20
"""Numbers whose sum tells the reading speed: more than any cache holds."""


class Stream:
    """Some streams that read on, token by token."""

    def __init__(self, engine: FrozenXL, lanes: int, switch: str) -> None:
        self.engine, self.switch = engine, switch
        self.token = torch.zeros(lanes, 1, dtype=torch.int64)
        self.memory = engine.start(lanes=lanes, reach=segue.Reach(memory=MEMORY, initial="zeros"))

    def __call__(self) -> None:
        os.environ[SWITCH] = self.switch
        _, self.memory = self.engine(self.token, self.memory)


@torch.no_grad()
def engines(
    repeats: int, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[str, str, dict[str, Times], dict[str, Any]]]:
    """For one stream and for sixteen: what was done, the setting, the times, and how near the limit they are."""
    config = segue.XLConfig(vocab=256, width=WIDTH, layers=LAYERS, heads=HEADS, feedforward=INNER)
    model, table = segue.TransformerXL(config).eval(), torch.randn(TABLE)
    bits: dict[str, tuple[bool, KVCache]] = {"": (False, "exact"), " float16 KV": (False, "float16")}
    if "fbgemm" in torch.backends.quantized.supported_engines:
        bits |= {" int8": (True, "exact"), " int8, int8 KV": (True, "int8")}
    kinds = {kind: model.frozen(int8=int8, kv_cache=kv_cache) for kind, (int8, kv_cache) in bits.items()}
    for lanes in (1, 16):
        works = {
            f"{name}{kind}": Stream(engine, lanes, switch)
            for kind, engine in kinds.items()
            for name, switch in (("native", "1"), ("torch", "0"))
        }
        times = interleaved(works | {"sum": table.sum}, repeats, clock)
        os.environ[SWITCH] = "1"
        speed = 4 * TABLE / times.pop("sum").median
        notes: dict[str, Any] = {"reading GB/s": round(speed / 1e9, 1)}
        for kind in kinds:
            needed = bytes_of_a_token(lanes, *bits[kind])
            ours = times[f"native{kind}"]
            notes[f"torch / native{kind}"] = round(times[f"torch{kind}"].over(ours), 2)
            notes[f"native{kind} / limit"] = round(ours.median / (needed / speed), 2)
            notes[f"native / native{kind}"] = round(times["native"].over(ours), 2)
        work = "one stream" if lanes == 1 else f"{lanes} streams"
        yield f"a token, {work}", f"{LAYERS} layers of {WIDTH}, M {MEMORY}", times, notes


def bytes_of_a_token(lanes: int, int8: bool, kv_cache: KVCache) -> int:
    """Weights and relative keys once, keys and values of every stream; relative keys are as precise as keys."""
    weights = LAYERS * WIDTH * (4 * WIDTH + 2 * INNER)
    rows = LAYERS * WIDTH * (MEMORY + 1)
    of_memory = {"exact": 4, "float16": 2, "int8": 1 + 4 / (WIDTH // HEADS)}[kv_cache]
    return int(weights * (1 if int8 else 4) + rows * of_memory * (1 + 2 * lanes))


def main() -> None:
    alone = "--processor" in sys.argv
    torch.set_num_threads(1 if alone else THREADS)
    native.library()
    print(native.why())
    for work, setting, times, notes in engines(15, time.thread_time if alone else time.perf_counter):
        told = ", ".join(f"{name} {one.median * 1e3:.2f} ms" for name, one in times.items())
        print(f"{work}, {setting}: {told}; {', '.join(f'{key} {value}' for key, value in notes.items())}")


if __name__ == "__main__":
    main()
