"""What fewer bits cost: bits per byte of a trained model with 8-bit weights, with a smaller KV cache, and with both.

    python bench/eight_bits.py runs/enwik8-cpu --data data/enwik8 --limit 100000

All read the same text. The error is that of the mean difference, from token to token.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

from machine import environment
from segue.checkpoint import Bundle, load
from segue.config import KVCache, Reading
from segue.infer.evaluate import surprises, targets_of
from segue.text.corpus import Stream, open_corpus
from segue.text.tokenizer import bytes_of

WAYS: dict[str, tuple[bool, KVCache]] = {
    "exact": (False, "exact"),
    "int8 weights": (True, "exact"),
    "float16 KV cache": (False, "float16"),
    "int8 KV cache": (False, "int8"),
    "int8 weights and float16 KV cache": (True, "float16"),
    "int8 weights and KV cache": (True, "int8"),
}


def measure(bundle: Bundle, stream: Stream, reading: Reading, limit: int) -> dict[str, dict[str, float]]:
    """Bits per byte of each way of reading, and how much more that is than the exact one's."""
    total, exact, rows = targets_of(stream, limit), torch.empty(0), {}
    assert stream.lossless, "bits per byte need a tokenizer that loses nothing"
    per_byte = total / bytes_of(stream.tokenizer, stream.ids[1 : total + 1]) / math.log(2)
    for name, (int8, kv_cache) in WAYS.items():
        engine = bundle.model.frozen(int8=int8, kv_cache=kv_cache)
        nats = torch.cat(list(surprises(engine, stream, reading, total)))
        exact = nats if name == "exact" else exact
        more = nats - exact
        rows[name] = {
            "bits_per_byte": per_byte * float(nats.mean()),
            "more": per_byte * float(more.mean()),
            "error": per_byte * float(more.std()) / math.sqrt(total),
        }
        print(
            f"{name:<36} {rows[name]['bits_per_byte']:.5f}  {rows[name]['more']:+.5f} ± {rows[name]['error']:.5f}"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100_000)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "eight_bits.json")
    options = parser.parse_args()
    bundle = load(options.run)
    reading = bundle.reading.changed(memory=options.memory)
    rows = measure(bundle, open_corpus(options.data).stream("test"), reading, options.limit)
    facts: dict[str, Any] = {"model": bundle.model.config.model_dump(mode="json"), "tokens": options.limit}
    facts |= {"reading": reading.model_dump(mode="json"), "environment": environment(), "rows": rows}
    options.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
