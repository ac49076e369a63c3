"""Memory compared with a sliding window: the cost of one predicted token at the published attention lengths.

    make bench                       # runs this after speed.py
    python bench/sliding.py --quick  # two lengths

A sliding window reads the whole window again for every token. It is measured in two ways: with all scores and all
queries, as published, and as fast as torch can (fused attention, one query in the last layer). segue reads with a
memory of the same length, as `segue eval` does.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

import segue
from machine import THREADS, as_json, environment, interleaved
from peers import LARGE, VOCAB, filled, some_tokens
from segue.lab.sliding_window import fast_window, textbook_window

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def model_of(encoding: str) -> segue.TransformerXL:
    config = segue.XLConfig(
        vocab=VOCAB, layers=LARGE.layers, width=LARGE.width, heads=LARGE.heads, encoding=encoding
    )
    return segue.TransformerXL(config).eval()


def nats(model: segue.TransformerXL, hidden: Tensor, tokens: Tensor) -> Tensor:
    return model.nats(hidden, tokens[:, -1:])


@torch.no_grad()
def measured(length: int, repeats: int) -> dict[str, object]:
    vanilla, xl = model_of("sinusoidal"), model_of("xl")
    window = some_tokens(1, length)
    apart = float(
        (
            nats(vanilla, textbook_window(vanilla, window), window)
            - nats(vanilla, fast_window(vanilla, window), window)
        )
        .abs()
        .max()
    )
    assert apart < 1e-4, f"the two windows should agree; they differ by {apart}"
    reading = segue.Reading(segment=128, reach=segue.Reach(memory=length, span=length, clamp=1000))
    engine = xl.frozen()
    held = [filled(engine, reading.reach, 1)]
    tokens = some_tokens(1, reading.chunk)

    def read() -> None:
        hidden, held[0] = engine(tokens, held[0])
        engine.nats(hidden, tokens)

    works = {
        "textbook": lambda: nats(vanilla, textbook_window(vanilla, window), window),
        "fast": lambda: nats(vanilla, fast_window(vanilla, window), window),
        "segue": read,
    }
    times = interleaved(works, repeats)
    ours = times["segue"].median / tokens.numel()
    return {
        "attention": length,
        "published": PUBLISHED[length],
        "textbook": round(times["textbook"].median / ours),
        "fast": round(times["fast"].median / ours),
        "seconds": as_json(times),
        "tokens read on": tokens.numel(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sliding.json")
    words = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    print(f"\n{'attention':>9} {'published':>10} {'textbook / segue':>17} {'fast window / segue':>20}")
    rows = []
    for length in (800, 1800) if words.quick else PUBLISHED:
        row = measured(length, 2 if words.quick else 3)
        rows.append(row)
        print(f"{length:>9} {row['published']:>9}x {row['textbook']:>16}x {row['fast']:>19}x", flush=True)
    results = {"command": "make bench", "made": time.strftime("%Y-%m-%d"), **environment(), "rows": rows}
    words.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
