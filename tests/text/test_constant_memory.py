"""Preparing takes no more memory for more text."""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pytest

from segue.progress import silent
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import Piece, Source, cut_in_pieces

MILLION = 10**6
WHOLE = PrepareConfig(valid=0, test=0)


class Endless:
    """A file of some size that is never anywhere as a whole."""

    def __init__(self, size: int, line: bytes) -> None:
        self.left, self.line = size, line

    def read(self, size: int) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return (self.line * (size // len(self.line) + 1))[:size]


@pytest.mark.parametrize("line", [b"the same line again\n", b"no newline ", b"noblank"])
def test_memory_stays_constant(line: bytes, tmp_path: Path) -> None:
    def pieces() -> Iterator[Piece]:
        texts = cut_in_pieces(cast("IO[bytes]", Endless(size, line)))
        yield from (Piece(text, number == 0) for number, text in enumerate(texts))

    peaks = []
    for size in (24 * 2**20, 48 * 2**20):
        tracemalloc.start()
        header = prepare(Source("it", {"train": pieces}), tmp_path / str(size), WHOLE, silent)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert header.splits["train"].tokens == size
    assert max(peaks) < 24 * 2**20
    assert peaks[1] < 1.1 * peaks[0]


def peak_megabytes(source: Path, target: Path) -> float:
    code = (
        "from segue.cli import main; from segue.lab.profiling import peak_resident\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(peak_resident())"  # getrusage would tell this process's peak where it is higher
    )
    command = [sys.executable, "-c", code, "prepare", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1]) / 2**20


@pytest.mark.slow
def test_two_gigabytes_take_no_more_memory_than_two_hundred_megabytes(tmp_path: Path) -> None:
    line = b"The quick brown fox jumps over the lazy dog, again and again and once more.\n"
    block = line * (MILLION // len(line))
    peaks = []
    for size in (200 * MILLION, 2000 * MILLION):
        source = tmp_path / f"{size}.txt"
        with source.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
        peaks.append(peak_megabytes(source, tmp_path / f"{size}"))
        source.unlink()
    assert peaks[1] < 1.1 * peaks[0], f"{peaks[0]:.0f} MB and {peaks[1]:.0f} MB"
