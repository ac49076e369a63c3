"""Training step of Linformer's and Performer's layers beside the PyPI packages `linformer` and `performer-pytorch`.

    make bench                      # runs this too, about two minutes

A ratio is the peer's median time over ours: processor time of one thread, which other work on the machine disturbs
least. Linformers have the same weights; both mix keys and values of all heads by one E and one F in each layer
(`share = "heads"`). The peer has no biases for queries, keys and values; ours are zero there, and computed all the
same. Performers have the same shape and number of random features, and are causal; the random features differ.
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
from segue.nn.kernel_chunk import chunk_masks
from segue.nn.layout import checked_layout
from segue.nn.mask import AttentionMask

ROWS = [
    (Size(4, 128, 4, 512), 1, 4096, 64),
    (Size(4, 256, 8, 1024), 2, 1024, 128),
    (Size(12, 512, 8, 2048), 2, 512, 128),
]
"""Sizes, texts, tokens, rank."""

PERFORMERS = [(Size(4, 128, 4, 512), 2, 512, 64), (Size(4, 256, 8, 1024), 1, 2048, 64)]
"""Sizes, lanes, tokens, random features."""


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
        block.pre = True  # segue's encoders are BERT's, whose norms come last; the peer's come first
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


def performer(size: Size, features: int) -> nn.Module:
    from performer_pytorch import Performer

    model: nn.Module = Performer(
        dim=size.width,
        depth=size.layers,
        heads=size.heads,
        dim_head=size.width // size.heads,
        nb_features=features,
        causal=True,
        auto_check_redraw=False,
    )
    return model


def our_performer(size: Size, features: int) -> segue.KernelModel:
    config = segue.KernelConfig(
        vocab=2,
        width=size.width,
        layers=size.layers,
        heads=size.heads,
        feedforward=size.feedforward,
        norm="pre",
        features="performer",
        random_features=features,
    )
    return segue.KernelModel(config)


def read_performer(model: segue.KernelModel, hidden: Tensor) -> Tensor:
    """The layers alone, as in `KernelModel.forward`."""
    memory = model.start(lanes=len(hidden), reach=segue.Reach(memory=1))
    masks = chunk_masks(checked_layout(hidden[..., 0].long(), None, None), hidden.device)
    for number, block in enumerate(model.blocks):
        hidden, _ = block(hidden, memory.state(number), masks)
    return hidden


def performer_row(size: Size, lanes: int, tokens: int, features: int, repeats: int) -> dict[str, Any]:
    peer, model = performer(size, features).train(), our_performer(size, features).train()
    hidden = torch.randn(lanes, tokens, size.width)
    works = {
        "performer-pytorch": step(peer, peer, hidden),
        "segue": step(lambda given: read_performer(model, given), model, hidden),
    }
    times = interleaved(works, repeats, time.process_time)
    setting = f"Performer, {size}, {tokens} tokens, {features} features, B = {lanes}"
    ratio = times["performer-pytorch"].over(times["segue"])
    print(f"{setting:<78} {times['segue'].median * 1e3:8.1f} ms  {ratio:5.2f}x", flush=True)
    return {"setting": setting, "seconds": as_json(times), "ratio": round(ratio, 3)}


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
    setting = f"Linformer, {size}, {tokens} tokens, rank {rank}, B = {texts}"
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
    repeats = 3 if words.quick else 9
    results = {
        "command": "make bench" + (" QUICK=--quick" if words.quick else ""),
        "environment": environment(),
        "made": time.strftime("%Y-%m-%d"),
        "limits": limits(),
        "rows": [
            *(row(*setting, repeats=repeats) for setting in ROWS),
            *(performer_row(*setting, repeats=repeats) for setting in PERFORMERS),
        ],
    }
    words.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {words.out}")


if __name__ == "__main__":
    main()
