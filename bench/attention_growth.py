"""How an encoder's self-attention grows with the text: full, in windows, with global tokens, Linformer, Nyström.

    make growth                     # runs this too, about two minutes; writes bench/results/attention_growth.json

Time is the fastest of several forward and backward passes of one layer's attention, in processor time of one thread.
Room is what autograd keeps of the forward pass, and the largest tensor that either pass makes. An exponent is the slope
of the line through the logarithms.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import segue
from machine import environment, interleaved
from segue.footprint import Largest, kept_for_backward
from segue.lab.profiling import exponent
from segue.nn import scratch
from segue.nn.mask import AttentionMask

SIZES = [1024, 2048, 4096, 8192]
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "window 256": {"window": 256},
    "window 256 + 16 global": {"window": 256, "global_tokens": 16},
    "linformer 128": {"attention": "linformer", "rank": 128},
    "nystrom 64": {"attention": "nystrom", "rank": 64},
}


def attention_of(kind: str, size: int) -> tuple[Callable[[], Tensor], segue.Encoder, Tensor]:
    """A function that runs the attention of one layer on a text, its weights, and its input."""
    config = segue.EncoderConfig(
        vocab=2, width=256, heads=4, layers=1, max_positions=SIZES[-1], **KINDS[kind]
    )
    model, hidden = segue.Encoder(config), torch.randn(size, 1, 256, requires_grad=True)
    mask = AttentionMask(
        size, size, causal=False, window=config.window or None, global_tokens=config.global_tokens
    )
    attention: Any = model.blocks[0].attention

    def run() -> Tensor:
        if config.attention != "full":
            return model.low_rank.layer(0, size).attend(attention, hidden, mask)
        out: Tensor = attention(hidden, attention.project(hidden), None, mask)
        return out

    return run, model, hidden


def room(kind: str, size: int) -> tuple[int, int]:
    """Bytes kept for the backward pass, and the elements of the largest tensor of both passes."""
    run, model, hidden = attention_of(kind, size)
    kept = kept_for_backward(run, [*model.parameters(), hidden])
    scratch.BUFFERS.__dict__.clear()  # room that was made before would not be seen
    with Largest() as largest:
        run().sum().backward()
    return kept, largest.elements


def grown(kind: str, repeats: int) -> dict[str, Any]:
    works: dict[str, Callable[[], object]] = {}
    for size in SIZES:
        run, _, _ = attention_of(kind, size)
        works[str(size)] = lambda run=run: run().sum().backward()
    times = interleaved(works, repeats, time.process_time)
    seconds = [times[str(size)].fastest for size in SIZES]
    kept, largest = zip(*[room(kind, size) for size in SIZES], strict=True)
    row = {
        "name": kind,
        "tokens": SIZES,
        "seconds": [round(cost, 5) for cost in seconds],
        "kept bytes": kept,
        "largest tensor": largest,
        "exponents": {
            "time": round(exponent(SIZES, seconds), 2),
            "kept": round(exponent(SIZES, kept), 2),
            "largest": round(exponent(SIZES, largest), 2),
        },
    }
    print(
        f"{kind:<24} {' '.join(f'{cost * 1e3:8.1f}' for cost in seconds)} ms  exponents {row['exponents']}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "attention_growth.json"
    )
    parser.add_argument("--repeats", type=int, default=9)
    words = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {
        "command": "make growth",
        "environment": environment(),
        "made": time.strftime("%Y-%m-%d"),
        "rows": [grown(kind, words.repeats) for kind in KINDS],
    }
    words.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
