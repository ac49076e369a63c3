"""How long commands take to start: `segue --help`, and `segue generate` to its first token, beside importing torch.

    python bench/start_up.py [--processor]    # a minute; part of `make bench`

All are processes of their own, measured in turns from their start to their end.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import segue
from machine import interleaved
from segue.checkpoint import Bundle
from segue.config import Reading
from segue.text.tokenizer import ByteTokenizer

AIM = 0.3  # seconds, of `--help` and of the first token beyond torch


def start_up(command: Path, repeats: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Median seconds of each. `command` is segue's, beside the python that it runs with."""
    python = str(command.with_name("python"))
    with tempfile.TemporaryDirectory() as folder:
        config = segue.XLConfig(vocab=256, width=512, layers=12, heads=8)
        reading = Reading(segment=64, reach=segue.Reach(memory=640))
        Bundle(segue.TransformerXL(config), reading, ByteTokenizer()).save(Path(folder) / "bundle")
        works = {
            "segue --help": [str(command), "--help"],
            "first token": [str(command), "generate", f"{folder}/bundle", "--tokens", "1", "--seed", "0"],
            "import torch": [python, "-c", "import torch"],
            "python": [python, "-c", "pass"],
        }
        times = interleaved({name: partial(_run, words) for name, words in works.items()}, repeats, clock)
    seconds = {name: round(one.median, 3) for name, one in times.items()}
    beyond = round(seconds["first token"] - seconds["import torch"], 3)
    return seconds | {"first token beyond torch": beyond, "aim of both": AIM}


def _run(command: list[str]) -> None:
    """Let modules be compiled once, as pip does it when it installs them, and not at every start."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, capture_output=True, env=settings)


def _of_children() -> float:
    """Processor seconds of all processes that have been waited for."""
    used = os.times()
    return used.children_user + used.children_system


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--segue", type=Path, default=Path(sys.executable).with_name("segue"))
    parser.add_argument("--processor", action="store_true", help="processor time, for a busy machine")
    words = parser.parse_args()
    clock = _of_children if words.processor else time.perf_counter
    for name, seconds in start_up(words.segue, 7, clock).items():
        print(f"{name:<25} {seconds:6.3f}")


if __name__ == "__main__":
    main()
