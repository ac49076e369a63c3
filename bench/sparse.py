"""Time and memory of attention by length: full, in a window, and in the patterns of sparse attention.

    make sparse                      # some minutes; writes bench/results/sparse.json
    python bench/sparse.py --quick   # up to 2,048 tokens

For each way and length a process of its own measures three times, each the fastest of several repeats: attention alone
(forward and backward), a training step of a small model, and reading with its engine. Times are the processor's, of one
thread, so that a busy machine disturbs them little. Memory is how much the peak of resident memory rises in the step.
The exponent is the slope of the line through the logarithms.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import segue
from machine import environment
from segue.lab.profiling import exponent, peak_resident, resident
from segue.nn.attention import gather
from segue.nn.layout import checked_layout

SIZES = (1024, 2048, 4096, 8192)
NEAR_ROOT = {1024: 32, 2048: 48, 4096: 64, 8192: 96}
"""Strides near the square root of the length, multiples of the 8 summaries."""

WINDOW, SUMMARY, VOCAB = 128, 8, 256
WAYS = ("full", "window 128", "strided √N", "fixed √N", "fixed 128")
MEASURES = ("attention", "training step", "reading")


def model_of(way: str, size: int) -> segue.TransformerXL:
    pattern, _, length = way.partition(" ")
    sparse: dict[str, Any] = {}
    if pattern in ("strided", "fixed"):
        sparse = {"pattern": pattern, "stride": NEAR_ROOT[size] if length == "√N" else int(length)}
    if pattern == "fixed":
        sparse["summary"] = SUMMARY
    torch.manual_seed(0)
    return segue.TransformerXL(segue.XLConfig(vocab=VOCAB, width=128, layers=2, heads=4, **sparse))


def fastest(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def measured(way: str, size: int, repeats: int) -> dict[str, float]:
    """One way and length, in this process."""
    torch.set_num_threads(1)
    model = model_of(way, size)
    reach = segue.Reach(memory=0, span=WINDOW if way.startswith("window") else None)
    tokens = torch.randint(0, VOCAB, (1, size))
    memory = model.start(reach=reach)

    def step() -> None:
        hidden, _ = model(tokens, memory)
        model.nats(hidden, tokens).mean().backward()

    before = resident()
    step()
    rise = peak_resident() - before
    engine = model.frozen()
    start = engine.start(reach=segue.Reach(memory=size, span=reach.span))
    config = model.config
    mask = model.masks(memory, checked_layout(tokens, None, None), tokens.device)[0]
    query = torch.randn(size, 1, config.heads, config.head_width, requires_grad=True)
    keys_values = torch.randn(2, size, 1, config.heads, config.head_width, requires_grad=True)

    def attention() -> None:
        relative = model.relative_keys(size, None)[0]
        gather(query, keys_values, relative, mask, 0.1).sum().backward()

    return {
        "attention": fastest(attention, repeats),
        "training step": fastest(step, repeats),
        "reading": fastest(lambda: engine(tokens, start), repeats),
        "bytes": rise,
    }


def swept(way: str, sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """All lengths of one way, each in a process of its own."""
    rows = []
    for size in sizes:
        words = [sys.executable, __file__, "--one", way, str(size), str(repeats)]
        rows.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    columns: dict[str, list[float]] = {name: [row[name] for row in rows] for name in (*MEASURES, "bytes")}
    exponents = {name: exponent(sizes, costs) for name, costs in columns.items()}
    for name in (*MEASURES, "bytes"):
        factor, unit = (2**-20, "MiB") if name == "bytes" else (1e3, "ms")
        costs = " ".join(f"{factor * cost:>9,.0f}" for cost in columns[name])
        print(
            f"{way:<12} {'memory' if name == 'bytes' else name:<14} {costs} {unit:<4} {exponents[name]:>5.2f}",
            flush=True,
        )
    return {"way": way, "sizes": sizes, **columns, "exponents": exponents}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sparse.json")
    words = parser.parse_args()
    if words.one:
        way, size, repeats = words.one
        print(json.dumps(measured(way, int(size), int(repeats))))
        return
    sizes = SIZES[:2] if words.quick else SIZES
    torch.set_num_threads(1)
    print(f"{'':<27} " + " ".join(f"{size:>9,}" for size in sizes) + "      exponent")
    rows = [swept(way, sizes, 2 if words.quick else 3) for way in WAYS]
    results = {"command": "make sparse", "made": time.strftime("%Y-%m-%d"), **environment(), "rows": rows}
    words.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
