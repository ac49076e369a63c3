"""Speed compared with the peers: one table, each row measured in turns on the same machine in the same run.

    make bench                      # builds the peers' environment, runs all rows (about 15 minutes)
    make bench QUICK=--quick        # fewer repeats, shorter lengths (about 3 minutes)

A ratio is the peer's median time over ours. Absolute times are shown too, but they depend on the machine's load.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import segue
from engines import engines
from machine import THREADS, Times, as_json, environment, interleaved, limits
from peers import LARGE, VOCAB, Rows, Size, filled, ours, some_tokens, transfo_xl, x_transformer
from segue.footprint import training_flops
from segue.lab.profiling import peak_resident
from segue.nn.frozen import FrozenXL
from segue.nn.kv_memory import KVMemory
from segue.nn.memory import Memory
from start_up import start_up

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    work: str
    setting: str
    times: dict[str, Times]
    aim: float | None  # times as fast as TransfoXL
    tokens: int  # of one time
    flops: float = 0.0  # of our products in one time, as a formula counts them
    notes: dict[str, Any] = field(default_factory=dict)

    def ratio(self, peer: str) -> float | None:
        return self.times[peer].over(self.times["segue"]) if peer in self.times else None


TRAINING = {
    1: (LARGE, Rows(2, 256, 256), 1.6),
    2: (Size(6, 256, 8, 1024), Rows(8, 128, 128), 2.6),
    3: (LARGE, Rows(1, 512, 512), 2.0),
    4: (Size(4, 128, 4, 512), Rows(16, 64, 64), 2.3),
}
EVALUATION = {
    5: (Rows(1, 80, 2100, clamp=820, capped=True), 6.9),
    6: (Rows(1, 128, 3800, clamp=1000, capped=True), 7.6),
    7: (Rows(1, 64, 640, clamp=400, capped=True), 4.7),
}
GENERATION = Rows(1, 1, 1600)


def training(size: Size, rows: Rows, aim: float, repeats: int) -> Row:
    peer = transfo_xl(size, rows).train()
    model, reach = ours(peer)
    model.train()
    other = x_transformer(size, rows).train()
    tokens = some_tokens(rows.lanes, rows.segment)
    memory = filled(model, reach, rows.lanes)
    with torch.no_grad():
        mems = peer(some_tokens(rows.lanes, rows.segment)).mems
        _, states = other(some_tokens(rows.lanes, rows.segment), return_mems=True)

    def theirs() -> None:
        peer(tokens, labels=tokens, mems=mems).losses.mean().backward()
        peer.zero_grad()

    def step() -> None:
        hidden, _ = model(tokens, memory)
        model.nats(hidden, tokens).mean().backward()
        model.zero_grad()

    def rotary() -> None:
        logits, _ = other(tokens, mems=states, return_mems=True)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        other.zero_grad()

    times = interleaved({"transfo-xl": theirs, "segue": step, "x-transformers": rotary}, repeats)
    setting = f"{size}, T = M = {rows.segment}, B = {rows.lanes}"
    train = segue.TrainConfig(lanes=rows.lanes, segment=rows.segment, memory=rows.memory, steps=1)
    return Row(
        "training step",
        setting,
        times,
        aim,
        tokens.numel(),
        training_flops(model.config, train),
        {"apart": apart(peer, model, reach, rows)},
    )


@torch.no_grad()
def apart(peer: nn.Module, model: segue.TransformerXL, reach: segue.Reach, rows: Rows) -> float:
    """The largest difference between the two models' log-probabilities on the third segment of some text."""
    peer.eval()
    mems, memory = None, model.start(lanes=rows.lanes, reach=reach)
    for _ in range(3):
        tokens = some_tokens(rows.lanes, rows.segment)
        output = peer(tokens, mems=mems)
        mems = output.mems
        hidden, memory = model(tokens, memory)
    logprobs = output.prediction_scores.view(rows.lanes, rows.segment, -1).log_softmax(-1)
    peer.train()
    return float((logprobs - model.logprobs(hidden)).abs().max())


@torch.no_grad()
def evaluation(rows: Rows, aim: float, repeats: int) -> Row:
    """Evaluation of a stream; segue reads several segments per pass where the capped span allows it, the peers one."""
    peer = transfo_xl(LARGE, rows).eval()
    model, reach = ours(peer)
    model.eval()
    other = x_transformer(LARGE, rows).eval()
    reading = segue.Reading(segment=rows.segment, reach=reach)
    tokens = some_tokens(1, reading.chunk)
    engine = model.frozen()
    held = [filled(engine, reach, 1)]
    mems, states = _theirs_filled(peer, rows), _rotary_filled(other, rows)

    def theirs() -> None:
        memory = mems
        for piece in tokens.split(rows.segment, dim=1):
            memory = peer(piece, labels=piece, mems=memory).mems

    def rotary() -> None:
        memory = states
        for piece in tokens.split(rows.segment, dim=1):
            logits, memory = other(piece, mems=memory, return_mems=True)
            nn.functional.cross_entropy(logits.flatten(0, 1), piece.flatten())

    def read() -> None:
        hidden, held[0] = engine(tokens, held[0])  # reads on, as a stream does
        engine.nats(hidden, tokens)

    times = interleaved({"transfo-xl": theirs, "segue": read, "x-transformers": rotary}, repeats)
    setting = f"12 layers of 512, T {rows.segment}, M {rows.memory}, clamp {rows.clamp}, span capped"
    return Row(
        "evaluation, one stream",
        setting,
        times,
        aim,
        tokens.numel(),
        reading_flops(LARGE, rows, tokens.numel()),
        notes={"apart": apart(peer, model, reach, rows)},
    )


def reading_flops(size: Size, rows: Rows, tokens: int) -> float:
    """Of the products that reading a stream cannot do without: keys, values and relative keys are there already."""
    span, near = rows.memory + 1, min(rows.clamp or rows.memory, rows.memory)
    layer = 4 * size.width**2 + 2 * size.width * size.feedforward + (2 * span + near) * size.width
    return 2.0 * tokens * (size.layers * layer + size.width * VOCAB)


def _theirs_filled(peer: nn.Module, rows: Rows) -> Any:
    mems = None
    for _ in range(-(-rows.memory // 400)):
        mems = peer(some_tokens(rows.lanes, 400), mems=mems).mems
    return mems


def _rotary_filled(other: nn.Module, rows: Rows) -> Any:
    states: Any = None
    size = rows.segment if rows.segment > 1 else 400
    for _ in range(-(-rows.memory // size)):
        _, states = other(some_tokens(rows.lanes, size), mems=states, return_mems=True)
    return states


@torch.no_grad()
def generation(repeats: int, count: int) -> Iterator[Row]:
    rows = GENERATION
    peer = transfo_xl(LARGE, rows).eval()
    model, reach = ours(peer)
    model.eval()
    mems = _theirs_filled(peer, rows)
    engine = model.frozen()
    memories = {
        "one": filled(engine, reach, 1),
        "16": filled(engine, reach, 16),
        "ages": _ages(engine, reach, 16),
    }

    def theirs() -> None:
        output = peer(some_tokens(1, 1), mems=mems)
        output.prediction_scores.argmax(-1)

    def read(streams: str, count: int) -> Work:
        def work() -> None:
            memory: KVMemory = memories[streams]
            token = some_tokens(memory.lanes, 1)
            for _ in range(count):
                hidden, memory = engine(token, memory)
                token = engine.logprobs(hidden).argmax(-1)
            memories[streams] = memory  # reads on: a memory that is not the newest would be copied first

        return work

    times = interleaved({"transfo-xl": theirs, "segue": read("one", count)}, repeats)
    times["segue"] = _divided(times["segue"], count)
    rotary = _rotary_generation(rows, repeats, count)
    yield Row(
        "generation, one stream",
        f"12 layers of 512, M {rows.memory}, token by token",
        times | {"x-transformers": rotary},
        20,
        1,
        notes={"apart": apart(peer, model, reach, Rows(1, 40, rows.memory))},
    )
    many = interleaved({"one": read("one", 4), "segue": read("16", 4), "ages": read("ages", 4)}, repeats)
    gained = 16 * many["one"].median / many["segue"].median
    yield Row(
        "generation, 16 streams",
        f"12 layers of 512, M {rows.memory}",
        {"segue": _divided(many["segue"], 4)},
        None,
        16,
        notes={
            "tokens/s of one stream, times": round(gained, 2),
            "aim": 6,
            "of different ages, times": round(many["ages"].median / many["segue"].median, 2),
            "aim of that": 1.2,
        },
    )


def _ages(engine: FrozenXL, reach: segue.Reach, lanes: int) -> KVMemory:
    """Streams that have read from a sixteenth of the memory's length up to all of it, joined."""
    ages = [reach.memory * (lane + 1) // lanes for lane in range(lanes)]
    return KVMemory.join([engine(some_tokens(1, age), engine.start(reach=reach))[1] for age in ages])


def _rotary_generation(rows: Rows, repeats: int, count: int) -> Times:
    """Generation with x-transformers' KV cache, after a prompt as long as our memory."""
    other = x_transformer(LARGE, Rows(1, 400, rows.memory)).eval()
    prompt = some_tokens(1, rows.memory)
    _, cache = other(prompt, return_intermediates=True)
    tokens = torch.cat([prompt, some_tokens(1, 1)], dim=1)

    def work() -> None:
        text, held = tokens, cache
        for _ in range(count):
            logits, held = other(text, cache=held, return_intermediates=True)
            text = torch.cat([text, logits[:, -1:].argmax(-1)], dim=1)

    return _divided(interleaved({"x": work}, repeats)["x"], count)


def _divided(times: Times, count: int) -> Times:
    return Times(times.median / count, times.fastest / count, times.slowest / count)


def resident() -> Row:
    """Peak memory of a training step as in row 1, each in a process of its own."""
    peaks = {}
    for name in ("transfo-xl", "segue"):
        command = [sys.executable, __file__, "--resident", name]
        peaks[name] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    share = peaks["segue"] / peaks["transfo-xl"]
    notes = {"bytes": peaks, "share": round(share, 3), "aim": 0.6}
    return Row("peak resident memory", "as row 1", {}, None, 0, notes=notes)


def one_resident(name: str) -> None:
    size, rows, _ = TRAINING[1]
    tokens = some_tokens(rows.lanes, rows.segment)
    if name == "transfo-xl":
        peer, mems = transfo_xl(size, rows).train(), None
        for _ in range(3):
            output = peer(tokens, labels=tokens, mems=mems)
            output.losses.mean().backward()
            mems = output.mems
            peer.zero_grad()
    else:
        config = segue.XLConfig(vocab=VOCAB, width=size.width, layers=size.layers, heads=size.heads)
        model = segue.TransformerXL(config)
        memory: Memory = model.start(lanes=rows.lanes, reach=segue.Reach(memory=rows.memory))
        for _ in range(3):
            hidden, memory = model(tokens, memory)
            model.nats(hidden, tokens).mean().backward()
            model.zero_grad()
    print(peak_resident())


def starting(segue_command: str, repeats: int) -> Row:
    return Row("start", "seconds", {}, None, 0, notes=start_up(Path(segue_command), repeats))


def rows_of(words: argparse.Namespace) -> Iterator[Row]:
    repeats = 3 if words.quick else 7
    for number, (size, rows, aim) in TRAINING.items():
        yield training(size, rows, aim, repeats if number in (1, 3) else 3 * repeats)
    for _, (rows, aim) in EVALUATION.items():
        yield evaluation(rows, aim, repeats)
    yield from generation(5 * repeats, 8)
    for work, setting, times, notes in engines(3 * repeats):
        yield Row(work, setting, times, None, 1, notes=notes)
    yield resident()
    if words.segue:
        yield starting(words.segue, repeats)


def shown(row: Row, machine: dict[str, float]) -> str:
    line = f"{row.work:<23} {row.setting:<66}"
    if row.times and "transfo-xl" in row.times:
        ratio, rotary = row.ratio("transfo-xl"), row.ratio("x-transformers")
        line += f" {row.times['segue'].median * 1e3:8.1f} ms  {ratio:5.2f}x (aim {row.aim})"
        line += f"  x-transformers {rotary:5.2f}x" if rotary else ""
        if row.flops:
            share = row.flops / row.times["segue"].median / machine["matmul_flops"]
            line += f"  {share:4.0%} of matmul"
    notes = {key: value for key, value in row.notes.items() if key != "bytes"}
    return line + "  " + ", ".join(f"{key} {_short(value)}" for key, value in notes.items())


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "speed.json")
    parser.add_argument("--segue", help="the segue command, to measure its start-up time")
    parser.add_argument("--resident", choices=["segue", "transfo-xl"], help=argparse.SUPPRESS)
    words = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if words.resident:
        return one_resident(words.resident)
    machine = limits()
    print(
        f"torch {torch.__version__}, {THREADS} threads; matmul {machine['matmul_flops'] / 1e9:.0f} GFLOP/s, "
        f"reading {machine['read_bytes'] / 1e9:.0f} GB/s, copying {machine['copy_bytes'] / 1e9:.0f} GB/s\n",
        flush=True,
    )
    results: dict[str, Any] = {
        "command": "make bench" + (" QUICK=--quick" if words.quick else ""),
        "environment": environment(),
        "made": time.strftime("%Y-%m-%d"),
        "limits": machine,
        "rows": [],
    }
    for row in rows_of(words):
        print(shown(row, machine), flush=True)
        results["rows"].append(
            {
                "work": row.work,
                "setting": row.setting,
                "aim": row.aim,
                "tokens": row.tokens,
                "flops": row.flops,
                "seconds": as_json(row.times),
                "ratio": {
                    peer: round(ratio, 3)
                    for peer in ("transfo-xl", "x-transformers")
                    if "segue" in row.times and (ratio := row.ratio(peer)) is not None
                },
                "notes": row.notes,
            }
        )
    words.out.parent.mkdir(exist_ok=True)
    words.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {words.out}")
    return None


if __name__ == "__main__":
    main()
