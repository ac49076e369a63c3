"""The rows of `models.py`: every language model at a common number of parameters."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from segue.config import LanguageConfig
from segue.footprint import parameters

PARAMETERS = 2_400_000
SEGMENT = 64
TRANSFORMER = {"kind": "xl", "width": 192, "layers": 4, "heads": 6}
RECURRENT = {"kind": "recurrent", "layers": 2}
PERFORMER = {"kind": "kernel", "features": "performer", "random_features": 64}
ISOLATED = {"memory": 0, "positions": "restart"}
CONFIG: TypeAdapter[LanguageConfig] = TypeAdapter(LanguageConfig)


class Row(NamedTuple):
    """A model, the setting that makes it larger or smaller, and its own training settings."""

    model: Callable[[int], dict[str, Any]]  # by that setting
    train: dict[str, Any]
    note: str = ""
    intermediate: bool = False  # Al-Rfou's losses, in the first half of the steps


def transformer(
    note: str = "", *, train: dict[str, Any] | None = None, intermediate: bool = False, **model: Any
) -> Row:
    """A Transformer of fixed width, as large as its feed-forward layers make it."""
    return Row(
        lambda size: {**TRANSFORMER, **model, "feedforward": size},
        {"memory": SEGMENT} if train is None else train,
        note,
        intermediate,
    )


def convolutional(gate: str, *layers: tuple[int, int]) -> Row:
    """Layers of one width, each with its kernel and dilation."""
    return Row(
        lambda size: {
            "kind": "convolutional",
            "gate": gate,
            "width": size,
            "layers": [(size, kernel, dilation) for kernel, dilation in layers],
        },
        {"memory": 1},
    )


def recurrent(cell: str) -> Row:
    return Row(lambda size: {**RECURRENT, "cell": cell, "width": size}, {"memory": 1})


MODELS: dict[str, Row] = {
    "xl": transformer(),
    "xl-rotary": transformer(encoding="rotary"),
    "xl-alibi": transformer(encoding="alibi"),
    "xl-shaw": transformer(encoding="shaw", max_distance=2 * SEGMENT),
    "xl-window": transformer("span 64", train={"memory": SEGMENT, "span": SEGMENT}),
    "xl-strided": transformer("stride 16", pattern="strided", stride=16),
    "xl-fixed": transformer("stride 16, 4 summaries", pattern="fixed", stride=16, summary=4),
    "xl-without-memory": transformer("isolated segments", train={"memory": 0}),
    "vanilla": transformer("isolated segments", encoding="sinusoidal", train=ISOLATED),
    "linear": transformer("isolated segments", kind="kernel", train=ISOLATED),
    "performer": transformer("isolated segments", **PERFORMER, train=ISOLATED),
    "linear-carried": transformer("sums over all that was read", kind="kernel", train={"memory": 1}),
    "performer-carried": transformer("sums over all that was read", **PERFORMER, train={"memory": 1}),
    "al-rfou": transformer(
        "isolated segments, auxiliary losses",
        encoding="per-layer",
        max_positions=SEGMENT,
        tied=False,
        train={**ISOLATED, "ahead": 2},
        intermediate=True,
    ),
    "universal": Row(
        lambda size: {"kind": "universal", "width": 6 * size, "heads": 6, "steps": 4, "halting": "act"},
        {"memory": SEGMENT, "ponder": 0.001},
        "one block, wider: more computation per parameter",
    ),
    "gcnn": convolutional("glu", *[(5, 1)] * 6),
    "tcn": convolutional("tcn", *[(3, 2**level) for level in range(6)]),
    "qrnn": convolutional("qrnn", *[(2, 1)] * 3),
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru"),
    "rnn": recurrent("rnn"),
}
"""All rows, by the names of the table."""


@cache
def _config(name: str, size: int, vocab: int) -> LanguageConfig:
    config: LanguageConfig = CONFIG.validate_python({**MODELS[name].model(size), "vocab": vocab})
    return config


def fitted(row: Row, vocab: int) -> LanguageConfig:
    """The row's config with as many parameters as possible, up to the common number."""
    name = next(name for name, one in MODELS.items() if one is row)
    low, high = 1, 1
    while parameters(_config(name, 2 * high, vocab)) <= PARAMETERS:
        high *= 2
    low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if parameters(_config(name, middle, vocab)) <= PARAMETERS else (low, middle)
        )
    return _config(name, low, vocab)
