"""Training step of Linformer's layers beside the PyPI package `linformer`: same weights, same inputs, in turns.

    make bench                      # runs this too, about a minute

A ratio is the peer's median time over ours: processor time of one thread, which other work on the machine disturbs
least. Both mix keys and values of all heads by one E and one F in each layer (`share = "heads"`). The peer has no
biases for queries, keys and values; ours are zero there, and computed all the same.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import segue
from machine import as_json, environment, interleaved, limits
from peers import Size
from segue.nn.mask import AttentionMask

ROWS = [
    (Size(4, 128, 4, 512), 1, 4096, 64),
    (Size(4, 256, 8, 1024), 2, 1024, 128),
    (Size(12, 512, 8, 2048), 2, 512, 128),
]
"""Sizes, texts, tokens, rank."""


def linformer(size: Size, tokens: int, rank: int) -> nn.Module:
    from linformer import Linformer

    model: nn.Module = Linformer(
        dim=size.width, seq_len=tokens, depth=size.layers, k=rank, heads=size.heads, one_kv_head=False
    )
    return model


def ours(peer: nn.Module, size: Size, tokens: int, rank: int) -> segue.Encoder:
    """The peer's weights in segue."""
    config = segue.EncoderConfig(
        vocab=2,
        width=size.width,
        layers=size.layers,
        heads=size.heads,
        feedforward=size.feedforward,
        norm="pre",
        attention="linformer",
        rank=rank,
        share="heads",
        max_positions=tokens,
    )
    model = segue.Encoder(config)
    for number, (block, (attention, feed_forward)) in enumerate(
        zip(model.blocks, peer.net.layers, strict=True)
    ):
        theirs, fed = attention.fn, feed_forward.fn
        with torch.no_grad():
            block.attention.query.weight.copy_(theirs.to_q.weight)
            block.attention.key_value.weight.copy_(torch.cat([theirs.to_k.weight, theirs.to_v.weight]))
            model.low_rank.matrices[number, :, 0] = torch.stack([theirs.proj_k.T, theirs.proj_v.T])
        block.attention.out.load_state_dict(theirs.to_out.state_dict())
        block.attention_norm = attention.norm
        block.feed_forward.inner.load_state_dict(fed.w1.state_dict())
        block.feed_forward.outer.load_state_dict(fed.w2.state_dict())
        block.feed_forward_norm = feed_forward.norm
    return model


def read(model: segue.Encoder, hidden: Tensor) -> Tensor:
    """The layers alone, as in `Encoder.forward`: hidden states (B, S, C) to hidden states."""
    size, hidden = hidden.size(1), hidden.transpose(0, 1)
    mask = AttentionMask(size, size, causal=False)
    for number, block in enumerate(model.blocks):
        hidden = block(hidden, hidden[:0], model.low_rank.layer(number, size), mask)
    return hidden.transpose(0, 1)


def step(run: Callable[[Tensor], Tensor], model: nn.Module, hidden: Tensor) -> Callable[[], None]:
    def work() -> None:
        run(hidden).square().mean().backward()
        model.zero_grad()

    return work


def row(size: Size, texts: int, tokens: int, rank: int, repeats: int) -> dict[str, Any]:
    peer = linformer(size, tokens, rank).train()
    model = ours(peer, size, tokens, rank).train()
    hidden = torch.randn(texts, tokens, size.width)
    with torch.no_grad():
        apart = float((peer(hidden) - read(model, hidden)).abs().max())
    works = {
        "linformer": step(peer, peer, hidden),
        "segue": step(lambda given: read(model, given), model, hidden),
    }
    times = interleaved(works, repeats, time.process_time)
    setting = f"{size}, {tokens} tokens, rank {rank}, B = {texts}"
    ratio = times["linformer"].over(times["segue"])
    print(
        f"{setting:<78} {times['segue'].median * 1e3:8.1f} ms  {ratio:5.2f}x  apart {apart:.1e}", flush=True
    )
    return {"setting": setting, "seconds": as_json(times), "ratio": round(ratio, 3), "apart": apart}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "attention_peers.json"
    )
    words = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {
        "command": "make bench" + (" QUICK=--quick" if words.quick else ""),
        "environment": environment(),
        "made": time.strftime("%Y-%m-%d"),
        "limits": limits(),
        "rows": [row(*setting, repeats=3 if words.quick else 9) for setting in ROWS],
    }
    words.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {words.out}")


if __name__ == "__main__":
    main()
