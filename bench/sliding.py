"""Reading on against sliding by one: what one predicted token costs, at the published attention lengths.

    make bench                       # runs this after speed.py
    python bench/sliding.py --quick  # two lengths

Sliding by one reads a whole window anew for every single token. Two of them: as in the textbook (all scores, all
rows: what was published), and as fast as torch can do it (fused attention, one row in the last layer). Reading on is
`segue eval` with a memory of the same length.
"""

import argparse
import json
import time
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

import segue
from machine import THREADS, as_json, environment, interleaved
from peers import LARGE, VOCAB, filled, some_tokens
from segue.nn import attention
from segue.nn.block import Block
from segue.nn.passage import Sight

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def model_of(encoding: str) -> segue.TransformerXL:
    config = segue.XLConfig(
        vocab=VOCAB, layers=LARGE.layers, width=LARGE.width, heads=LARGE.heads, encoding=encoding
    )
    return segue.TransformerXL(config).eval()


def textbook_window(model: segue.TransformerXL, tokens: Tensor) -> Tensor:
    """The nats of one token after a window, every score computed."""
    with patch.object(attention, "attend", _textbook):
        memory = model.start(reach=segue.Reach(memory=0, positions="restart"))
        hidden, _ = model(tokens, memory)
    return model.nats(hidden[:, -1:], tokens[:, -1:])


def _textbook(query: Tensor, keys_values: Tensor, relation: None, sight: Sight, scale: float) -> Tensor:
    scores = attention.attention_scores(query, keys_values[0], relation) * scale
    scores = scores.masked_fill(~sight.mask(scores.device), float("-inf"))
    return torch.einsum("bhts,sbhd->tbhd", scores.softmax(dim=-1), keys_values[1])


def fast_window(model: segue.TransformerXL, tokens: Tensor) -> Tensor:
    """The same by fused attention; in the last layer only the last row goes on."""
    hidden = model.positions.embedded(model.vocabulary.embed(tokens), torch.arange(tokens.size(1))[None])
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        last = number == len(model.blocks) - 1
        asking = hidden[:, -1:] if last else hidden
        heads = block.attention.heads
        query = block.attention.query(asking).unflatten(-1, (heads, -1)).transpose(1, 2)
        key, value = block.attention.key_value(hidden).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
        gathered = F.scaled_dot_product_attention(query, key, value, is_causal=not last)
        mixed = block.attention_norm(asking + block.attention.out(gathered.transpose(1, 2).flatten(2)))
        hidden = block.feed_forward_norm(mixed + block.feed_forward(mixed))
    return model.nats(hidden[:, -1:], tokens[:, -1:])


@torch.no_grad()
def measured(length: int, repeats: int) -> dict[str, object]:
    vanilla, xl = model_of("sinusoidal"), model_of("xl")
    window = some_tokens(1, length)
    apart = float((textbook_window(vanilla, window) - fast_window(vanilla, window)).abs().max())
    assert apart < 1e-4, f"the two windows should agree; they differ by {apart}"
    reading = segue.Reading(segment=128, reach=segue.Reach(memory=length, span=length, clamp=1000))
    held = [filled(xl, reading.reach, 1, still=True)]
    tokens = some_tokens(1, reading.at_once)

    def read() -> None:
        hidden, held[0] = xl(tokens, held[0])
        xl.nats(hidden, tokens)

    works = {
        "textbook": lambda: textbook_window(vanilla, window),
        "fast": lambda: fast_window(vanilla, window),
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
        found = measured(length, 2 if words.quick else 3)
        rows.append(found)
        print(
            f"{length:>9} {found['published']:>9}x {found['textbook']:>16}x {found['fast']:>19}x", flush=True
        )
    results = {"command": "make bench", "made": time.strftime("%Y-%m-%d"), **environment(), "rows": rows}
    words.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
