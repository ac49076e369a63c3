"""Training steps with native code and without it, in turns: rows 1 to 4 of `bench/speed.py`, and attention dropout.

    python bench/native.py                  # about 3 minutes
    python bench/native.py --processor      # processor time of one thread, for a busy machine

Every ratio is torch's median time over that of native code, in the same run.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

import segue
from machine import THREADS, environment, interleaved
from segue import native
from segue.footprint import training_flops

SIZES = {
    1: (12, 512, 8, 2, 256),
    2: (6, 256, 8, 8, 128),
    3: (12, 512, 8, 1, 512),
    4: (4, 128, 4, 16, 64),
}
"""Layers, width, heads, lanes, segment (which is the memory too)."""


def step(number: int, *, dropout: float, switch: str) -> Callable[[], None]:
    layers, width, heads, lanes, segment = SIZES[number]
    torch.manual_seed(0)
    config = segue.XLConfig(
        vocab=256, width=width, layers=layers, heads=heads, feedforward=4 * width, attention_dropout=dropout
    )
    model = segue.TransformerXL(config).train()
    tokens = torch.randint(256, (lanes, segment))
    _, memory = model(tokens, model.start(lanes=lanes, reach=segue.Reach(memory=segment)))

    def work() -> None:
        os.environ[native.SWITCH] = switch
        hidden, _ = model(tokens, memory)
        model.nats(hidden, tokens).mean().backward()
        model.zero_grad()

    return work


def flops(number: int) -> float:
    layers, width, heads, lanes, segment = SIZES[number]
    config = segue.XLConfig(vocab=256, width=width, layers=layers, heads=heads, feedforward=4 * width)
    return training_flops(config, segue.TrainConfig(lanes=lanes, segment=segment, memory=segment, steps=1))


def product_flops(clock: Callable[[], float]) -> float:
    """FLOP/s of a large product by torch, by the same clock."""
    square = torch.randn(1024, 1024)
    return 2 * 1024**3 / interleaved({"product": lambda: square @ square}, 7, clock)["product"].fastest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processor", action="store_true", help="processor time of one thread")
    parser.add_argument("--rows", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    words = parser.parse_args()
    torch.set_num_threads(1 if words.processor else THREADS)
    clock = time.process_time if words.processor else time.perf_counter
    matmul = product_flops(clock)
    print(f"{native.why()}; matmul {matmul / 1e9:.0f} GFLOP/s", flush=True)
    rows = []
    for number in words.rows:
        works = {
            f"{engine}{', dropout' if dropout else ''}": step(number, dropout=dropout, switch=switch)
            for dropout in (0.0, 0.15)
            for engine, switch in (("native", "1"), ("torch", "0"))
        }
        times = interleaved(works, words.repeats if number in (1, 3) else 3 * words.repeats, clock)
        seconds = {name: one.median for name, one in times.items()}
        share = flops(number) / seconds["native"] / matmul
        print(
            f"row {number}: native {seconds['native'] * 1e3:.1f} ms, torch / native "
            f"{seconds['torch'] / seconds['native']:.2f}, {share:.0%} of matmul; with attention dropout "
            f"{seconds['native, dropout'] / seconds['native']:.2f} of that, torch / native "
            f"{seconds['torch, dropout'] / seconds['native, dropout']:.2f}",
            flush=True,
        )
        rows.append({"row": number, "seconds": seconds, "share of matmul": share})
    if words.out:
        figures = {"environment": environment(), "processor": words.processor, "matmul_flops": matmul}
        words.out.write_text(json.dumps(figures | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
