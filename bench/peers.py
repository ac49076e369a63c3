"""Peer libraries' models, built with equal sizes; TransfoXL also with equal weights, so its output must equal ours.

Needs the peers' virtual environment (`make bench` builds it).
"""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import segue
from segue.config import Reading
from segue.interop.huggingface import build_transfo_xl
from segue.nn.frozen import FrozenXL
from segue.nn.memory import Memory

VOCAB = 204  # as in the published enwik8 models


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    feedforward: int

    def __str__(self) -> str:
        return f"{self.layers} layers of {self.width}, {self.heads} heads, inner {self.feedforward}"


LARGE = Size(12, 512, 8, 2048)


@dataclass(frozen=True)
class Rows:
    """How a stream is read: B lanes, segment length T, memory length M, clamp, and whether all tokens have one span."""

    lanes: int
    segment: int
    memory: int
    clamp: int | None = None
    capped: bool = False


def transfo_xl(size: Size, rows: Rows, vocab: int = VOCAB) -> nn.Module:
    warnings.filterwarnings("ignore")
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    config = TransfoXLConfig(
        vocab_size=vocab,
        cutoffs=[],
        d_model=size.width,
        d_embed=size.width,
        n_head=size.heads,
        d_head=size.width // size.heads,
        d_inner=size.feedforward,
        n_layer=size.layers,
        mem_len=rows.memory,
        clamp_len=-1 if rows.clamp is None else rows.clamp,
        same_length=rows.capped,
        dropout=0.0,
        dropatt=0.0,
        div_val=1,
        untie_r=True,
        proj_share_all_but_first=False,
    )
    model: nn.Module = TransfoXLLMHeadModel(config)
    return model


def ours(peer: nn.Module) -> tuple[segue.TransformerXL, segue.Reach]:
    """The peer's weights in segue."""
    weights = {name: weight.clone() for name, weight in peer.state_dict().items()}
    return build_transfo_xl(weights, peer.config.to_dict())


def x_transformer(size: Size, rows: Rows, vocab: int = VOCAB) -> nn.Module:
    """A model with rotary positions and fused attention: it computes less, since it has no relative position term."""
    from x_transformers import Decoder, TransformerWrapper

    model: nn.Module = TransformerWrapper(
        num_tokens=vocab,
        max_seq_len=rows.segment + rows.memory,
        max_mem_len=rows.memory,
        attn_layers=Decoder(
            dim=size.width,
            depth=size.layers,
            heads=size.heads,
            attn_dim_head=size.width // size.heads,
            ff_mult=size.feedforward // size.width,
            rotary_pos_emb=True,
            attn_flash=True,
        ),
    )
    return model


def filled(reader: segue.TransformerXL | FrozenXL, reach: segue.Reach, lanes: int) -> Any:
    """A full memory of random text, of a model in training or of an engine."""
    memory: Memory = reader.start(lanes=lanes, reach=reach)
    with torch.no_grad():
        while memory.size < reach.memory:
            _, memory = reader(some_tokens(lanes, min(512, reach.memory)), memory)
    return memory


def some_tokens(lanes: int, size: int) -> Tensor:
    return torch.randint(0, VOCAB, (lanes, size))


def reading(rows: Rows, reach: segue.Reach) -> Reading:
    return Reading(segment=rows.segment, reach=reach)
