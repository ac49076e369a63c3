"""Preparing takes no more memory for more text."""

import subprocess
import sys
from pathlib import Path

import pytest

MILLION = 10**6


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
