"""Data parallel training on this machine: speed and memory of each rank, for 1, 2 and 4 ranks, with DDP and FSDP2.

    make scale                # some minutes; writes bench/results/scale.json
    make scale MORE=--large   # and the peak memory of the 277M preset on 2 ranks; takes 12 GB

All processes share this machine's cores, so more of them are not faster: this measures the cost of communication.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import segue
from machine import environment
from segue.lab.profiling import peak_resident
from segue.recipe import Recipe
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from segue.training.loop import Event

HERE = Path(__file__).parent
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_THRESHOLD_": "65536",  # freed tensors are returned at once: else peaks include heap fragmentation
}
SKIPPED = 3
"""Warm-up steps that do not count."""


def recipe_of(name: str, steps: int, *, sharded: bool) -> Recipe:
    """A model of 7.8 million parameters, or the 277M preset with so few tokens that weights dominate memory."""
    small = {"vocab": 256, "width": 384, "layers": 4, "heads": 8, "feedforward": 1536}
    large = {**segue.preset("enwik8-24l").recipe.model.model_dump(), "vocab": 256, "dropout": 0.0}
    lanes, segment = (8, 64) if name == "small" else (4, 8)
    return Recipe(
        model=small if name == "small" else {**large, "attention_dropout": 0.0},
        train={
            "lanes": lanes, "segment": segment, "memory": segment, "steps": steps, "optimizer": "adamw",
            "save_every": 0, "sharded": sharded,
        },
        reading={"segment": segment, "reach": {"memory": segment}},
    )  # fmt: skip


def work(name: str, corpus: Path, run: Path, steps: int, *, sharded: bool) -> None:
    """One rank: trains without saving, and writes its speed and peak memory to a file."""
    before, recipe, times = peak_resident(), recipe_of(name, steps, sharded=sharded), []

    def watch(event: Event) -> None:
        if event.kind == "step":
            times.append(event.values["seconds"])

    def stop() -> bool:
        """Called once in every step; exits after the last one, before anything is saved."""
        nonlocal steps
        steps -= 1
        if steps:
            return False
        figures: dict[str, float] = {"begun_with": before, "peak": peak_resident()}
        if times:
            tokens = recipe.train.lanes * recipe.train.segment * (len(times) - 1 - SKIPPED)
            figures["tokens_per_second"] = tokens / (times[-1] - times[SKIPPED])
        (run.parent / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(figures))
        os._exit(0)

    segue.train(recipe, corpus, run, watch=watch, interrupted=stop)


def measured(name: str, ranks: int, steps: int, *, sharded: bool) -> dict[str, Any]:
    """Start so many ranks and collect the figures of each."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        corpus = _corpus(folder)
        words = [
            "--worker",
            name,
            "--corpus",
            str(corpus),
            "--folder",
            str(folder / "run"),
            "--steps",
            str(steps),
        ]
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        subprocess.run(
            [sys.executable, *launch, *where, __file__, *words, *(["--sharded"] if sharded else [])],
            check=True,
            env={**os.environ, **SETTINGS},
        )
        each = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    row = {"model": name, "ranks": ranks, "way": "FSDP2" if sharded else "DDP", "each": each}
    most = max(one["peak"] - one["begun_with"] for one in each)
    print(
        f"{name:<6} {ranks} ranks, {row['way']:<5}: {each[0]['tokens_per_second']:8,.0f} tokens/s, "
        f"{most / 2**20:,.0f} MiB per rank",
        flush=True,
    )
    return row


def _corpus(folder: Path) -> Path:
    draw = random.Random(0)  # noqa: S311
    (folder / "text").write_bytes(draw.randbytes(200_000))
    config = PrepareConfig(tokenizer="bytes", valid=0.1, test=0.1)
    prepare(from_files("bytes", [folder / "text"]), folder / "corpus", config, lambda *_: None)
    return folder / "corpus"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1 and 2 processes, a few steps")
    parser.add_argument("--large", action="store_true", help="the 277M preset too")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale.json")
    for name, kind in (("--worker", str), ("--corpus", Path), ("--folder", Path), ("--steps", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--sharded", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.worker:
        work(words.worker, words.corpus, words.folder, words.steps, sharded=words.sharded)
        return
    sizes, steps = ((1, 2), 8) if words.quick else ((1, 2, 4), 14)
    results = [measured("large", 2, 6, sharded=sharded) for sharded in (False, True)] if words.large else []
    results += [
        measured("small", ranks, steps, sharded=sharded)
        for ranks in sizes
        for sharded in ((False, True) if ranks > 1 else (False,))
    ]
    record = {
        "command": "make scale MORE=--large" if words.large else "make scale",
        "made": time.strftime("%Y-%m-%d"),
        **environment(),
        "results": results,
    }
    words.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
