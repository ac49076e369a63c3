"""Small models and the strategies that the laws draw from."""

import os
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from segue.config import Reach, XLConfig
from segue.nn.engine import Engine
from segue.nn.frozen import FrozenXL
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL

VOCAB = 13
ENCODINGS = ("xl", "shaw", "sinusoidal", "learned", "per-layer", "rotary", "alibi", "none")
TABLES = {  # shaw's is short on purpose: distances go beyond it
    "shaw": {"max_distance": 5},
    "learned": {"max_positions": 64},
    "per-layer": {"max_positions": 64},
}

EXAMPLES = int(os.environ.get("SEGUE_EXAMPLES", "60"))


def build(config: XLConfig, seed: int = 0) -> TransformerXL:
    """A model in float64, dropout off, with weights large enough that everything shows."""
    torch.manual_seed(seed)
    model = TransformerXL(config.model_copy(update={"init": 0.4})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # biases too: zero would hide mistakes
    return model


def shape(encoding: str = "xl", **changes: object) -> XLConfig:
    """A tiny config."""
    small = {"vocab": VOCAB, "width": 8, "layers": 2, "heads": 2, "feedforward": 12}
    return XLConfig(**{**small, **TABLES.get(encoding, {}), "encoding": encoding, **changes})


@st.composite
def shapes(draw: st.DrawFn, encodings: Sequence[str] = ENCODINGS) -> XLConfig:
    heads, encoding = draw(st.integers(1, 3)), draw(st.sampled_from(encodings))
    layers = draw(st.integers(1, 3))
    return shape(
        encoding,
        heads=heads,
        head_width=draw(st.integers(2 if encoding == "rotary" else 1, 4)),
        width=draw(st.sampled_from([4, 5, 8])),
        layers=layers,
        norm=draw(st.sampled_from(["post", "pre"])),
        biases=draw(st.sampled_from(["shared", "per-layer"])),
        layer_embeddings=draw(st.booleans()),
        **draw(st.sampled_from([{}, {"ngrams": 3, "ngram_rows": 11}])),
        **draw(sparse_settings(heads, layers)),
    )


@st.composite
def sparse_settings(draw: st.DrawFn, heads: int, layers: int) -> dict[str, object]:
    """The settings of a pattern of sparse attention; none of them in every second case."""
    pattern = draw(st.sampled_from(["full", "full", "strided", "fixed"]))
    if pattern == "full":
        return {}
    ways = ["merged", *(["layers"] if layers > 1 else []), *(["heads"] if heads > 1 else [])]
    summary = draw(st.integers(1, 3)) if pattern == "fixed" else 0
    stride = draw(st.integers(1, 6)) if pattern == "strided" else summary * draw(st.integers(1, 4))
    return {"pattern": pattern, "stride": stride, "summary": summary, "combine": draw(st.sampled_from(ways))}


@st.composite
def whole_reaches(draw: st.DrawFn, config: XLConfig, past: int) -> Reach:
    """A reach under which cuts must not show: memory + 1 >= span, or memory for all the past."""
    clamp = draw(st.one_of(st.none(), st.integers(1, past))) if config.position_encoding.relative else None
    if draw(st.booleans()):
        return Reach(memory=draw(st.integers(past, past + 5)), clamp=clamp)
    span = draw(st.integers(1, past))
    memory = draw(st.integers(span - 1, past))
    if draw(st.booleans()) and can_pin(config, clamp):
        return Reach(memory=memory, clamp=clamp, span=span, pinned=draw(st.integers(1, 4)))
    return Reach(memory=memory, clamp=clamp, span=span, initial=draw(st.sampled_from(["empty", "zeros"])))


def can_pin(config: XLConfig, clamp: int | None) -> bool:
    """Whether rows can be pinned with these settings."""
    distances = config.encoding not in ("xl", "alibi") or clamp is not None
    return config.pattern == "full" and config.encoding != "rotary" and distances


def cuts(total: int) -> st.SearchStrategy[list[int]]:
    """Places to cut a stream of `total` tokens."""
    return st.lists(st.integers(1, total - 1), unique=True).map(sorted)


def some_tokens(lanes: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (lanes, length), generator=torch.Generator().manual_seed(seed))


ENGINES = ("training", "frozen", "native")
"""Ways to read in float64, which all laws and references hold for. Without a compiler, native is frozen again."""


def engine_of(name: str, model: TransformerXL) -> Any:
    """The model as it is trained, or its engine for reading: in torch alone, or with steps in native code."""
    if name == "training":
        return model
    engine = model.frozen()
    return engine if name == "native" else in_torch_alone(engine)


def in_torch_alone(engine: FrozenXL) -> FrozenXL:
    """The engine without native code."""
    engine._native, engine._asked_native = None, True
    return engine


def read_in_pieces(
    model: TransformerXL | Engine[Any], tokens: Tensor, memory: Memory, places: Sequence[int]
) -> tuple[Tensor, Memory]:
    pieces = []
    for piece in torch.tensor_split(tokens, list(places), dim=1):
        hidden, memory = model(piece, memory)
        pieces.append(hidden)
    return torch.cat(pieces, dim=1), memory
