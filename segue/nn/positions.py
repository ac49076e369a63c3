"""Positional encodings: eight of them in one file; `config.ENCODINGS` says what each is.

Relative encodings (`xl`, `shaw`, `alibi`) give attention the distance of each key; `rotary` turns queries and keys by
their positions; absolute ones (`sinusoidal`, `learned`, `per-layer`) add a vector to the inputs of the layers; `none`
does nothing.

Letters: B lanes, T tokens, S keys, H heads, D head width, C width, K rows of a learned table, N layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segue.config import LayersConfig, XLConfig
from segue.errors import InputError
from segue.nn.dropout import Dropout


def sinusoids(places: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[sin(p w_0) ..., cos(p w_0) ...] with w_f = 10000^(-2f/C), for places of any shape.

    Counted in float32 or better whatever the model's precision: bfloat16 cannot count past 256.
    """
    exact = torch.promote_types(dtype, torch.float32)
    frequencies = 10000 ** -(torch.arange(0, width, 2, dtype=exact, device=places.device) / width)
    angles = places.to(exact)[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width].to(dtype)


def interleaved_sinusoids(places: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[sin(p w_0), cos(p w_0), sin(p w_1), …]: the same numbers in Vaswani's order."""
    halves = sinusoids(places, width + width % 2, dtype).unflatten(-1, (2, -1))
    mixed: Tensor = halves.transpose(-1, -2).flatten(-2)
    return mixed[..., :width]


@dataclass(frozen=True, eq=False)
class RelativeKeys:
    """One layer's keys for distances. Row j stands for distance R-1-j, so the last row is distance 0.

    Distances of R or more score zero. With a clamp, all distances from it on share one row. That row is subtracted from
    all others, which softmax does not notice, so that only the nearer rows need to be kept.
    """

    rows: Tensor  # (R, H, D): W_kR R, of terms (b) and (d); (R, H, 0) where there is a bias alone
    content_bias: Tensor  # (H, D): u, of term (c)
    position_bias: Tensor  # (H, D): v, of term (d)
    row_bias: Tensor | None = None  # (R, H): a scalar for each distance (Shaw, ALiBi)
    stored: "StoredRows | None" = None  # what the rows were rounded to

    def to(self, kind: torch.dtype) -> "RelativeKeys":
        """The same in another precision."""
        bias = None if self.row_bias is None else self.row_bias.to(kind)
        u, v = self.content_bias.to(kind), self.position_bias.to(kind)
        return RelativeKeys(self.rows.to(kind), u, v, bias)


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Relative keys in fewer bits (`kv_precision.py`), as they were before the farthest was subtracted from them."""

    rows: Tensor  # (H, R, D)
    farthest: Tensor | None  # (H, D) in the model's precision; None if nothing was subtracted


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotary positions: pairs of a vector's numbers are turned by angles that grow with the position.

    The product of a turned query and a turned key depends on their distance alone, so any numbering of the positions
    will do that counts on from key to key.
    """

    cosines: Tensor  # (…, D / 2)
    sines: Tensor

    def turned(self, vectors: Tensor) -> Tensor:
        """(…, H, D) Turn vectors whose positions are those of this rotation. An odd last number stays."""
        half = self.cosines.size(-1)
        first, second, rest = vectors[..., :half], vectors[..., half : 2 * half], vectors[..., 2 * half :]
        cosines, sines = self.cosines[..., None, :], self.sines[..., None, :]
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines, rest], dim=-1)

    def part(self, begin: int, end: int) -> "Rotation":
        return Rotation(self.cosines[begin:end], self.sines[begin:end])


def rotation(places: Tensor, width: int, dtype: torch.dtype) -> Rotation:
    """The rotation of vectors of this width at places of any shape. Angles are computed in float64: they grow large."""
    frequencies = 10000 ** -(
        torch.arange(width // 2, dtype=torch.float64, device=places.device) / (width // 2)
    )
    angles = places.double()[..., None] * frequencies
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


Relative = RelativeKeys | Rotation
"""How one layer's attention knows distances."""


class Positions(nn.Module):
    """The encoding `none`, and what all the others answer to."""

    def embedded(self, hidden: Tensor, places: Tensor) -> Tensor:  # noqa: ARG002
        """The embeddings (…, C), with the vectors of their positions `places` (…) added."""
        return hidden

    def layer_input(self, layer: int, hidden: Tensor, places: Tensor) -> Tensor:  # noqa: ARG002
        """The inputs of a layer, with the vectors of their positions added."""
        return hidden

    def distances(self, keys: int, clamp: int | None, like: Tensor) -> Any:  # noqa: ARG002
        """What the relative keys of all layers are made of, computed once for S keys, with the type of `like`."""
        return None

    def relative_keys(self, layer: int, distances: Any) -> Relative | None:  # noqa: ARG002
        """How a layer's attention knows distances; None if it does not."""
        return None

    def whole_rows(self, layer: int, keys: int, clamp: int | None) -> Tensor | None:  # noqa: ARG002
        """(R or R + 1, H, D) The rows of a layer's relative keys before the farthest is subtracted; None for no rows.

        The farthest is the first of R + 1. These rows are the same for any number of keys and any clamp.
        """
        return None


class XLPositions(Positions):
    """`xl`: a learned projection W_kR of the sinusoid R of each distance, and the global biases u and v."""

    def __init__(self, config: LayersConfig, layers: int, pairs: int) -> None:
        super().__init__()
        self.width, self.heads = config.width, config.heads
        self.content_bias = nn.Parameter(torch.empty(pairs, config.heads, config.head_width))  # u
        self.position_bias = nn.Parameter(torch.empty(pairs, config.heads, config.head_width))  # v
        self.projections = nn.ModuleList(
            nn.Linear(config.width, config.heads * config.head_width, bias=False)  # W_kR
            for _ in range(layers)
        )
        self.dropout = Dropout(config.dropout)

    def distances(self, keys: int, clamp: int | None, like: Tensor) -> Tensor:  # noqa: ARG002
        """(R, C) The sinusoids of distances R-1 … 0, minus the clamp's where the clamp is reached."""
        farthest = keys - 1 if clamp is None else min(keys - 1, clamp)
        back = torch.arange(farthest, -1, -1, device=self.content_bias.device)
        dropped: Tensor = self.dropout(sinusoids(back, self.width, self.content_bias.dtype))
        return dropped[1:] - dropped[:1] if farthest == clamp else dropped

    def to_both_sides(self, keys: int) -> Tensor:
        """(2 S - 1, C) The sinusoids of distances S-1 … -(S-1), for queries that also see what lies ahead."""
        back = torch.arange(keys - 1, -keys, -1, device=self.content_bias.device)
        dropped: Tensor = self.dropout(sinusoids(back, self.width, self.content_bias.dtype))
        return dropped

    def relative_keys(self, layer: int, distances: Any) -> RelativeKeys:
        rows = self.projections[layer](distances).unflatten(-1, (self.heads, -1))
        pair = layer % len(self.content_bias)  # a shared pair is the only one
        return RelativeKeys(rows, self.content_bias[pair], self.position_bias[pair])

    def whole_rows(self, layer: int, keys: int, clamp: int | None) -> Tensor:
        known = keys if clamp is None else min(keys, clamp + 1)
        return self.relative_keys(layer, self.distances(known, None, self.content_bias)).rows


class ShawPositions(Positions):
    """`shaw`: for each layer and distance a learned vector and a learned scalar, and a content bias u.

    Distances beyond the table reuse its farthest row; a clamp of k leaves the distances 0 … k-1.
    """

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        pairs = 1 if config.biases == "shared" else config.layers
        self.content_bias = nn.Parameter(torch.empty(pairs, config.heads, config.head_width))  # u
        self.table = nn.Parameter(
            torch.empty(config.layers, config.max_distance, config.heads, config.head_width)
        )  # row d is distance d
        self.table_bias = nn.Parameter(torch.empty(config.layers, config.max_distance, config.heads))

    def distances(self, keys: int, clamp: int | None, like: Tensor) -> Tensor:  # noqa: ARG002
        """(R + 1,) The distances R … 0; the farthest row will be subtracted from the others."""
        rows = self.table.size(1)
        farthest = min(rows, clamp or rows, keys) - 1
        return torch.arange(farthest, -1, -1, device=self.table.device)

    def relative_keys(self, layer: int, distances: Any) -> RelativeKeys:
        pair = layer % len(self.content_bias)
        rows, bias = self.table[layer][distances], self.table_bias[layer][distances]
        u = self.content_bias[pair]
        return RelativeKeys(rows[1:] - rows[:1], u, torch.zeros_like(u), bias[1:] - bias[:1])

    def whole_rows(self, layer: int, keys: int, clamp: int | None) -> Tensor:
        return self.table[layer][self.distances(keys, clamp, self.table)]


class ALiBiPositions(Positions):
    """`alibi`: every head subtracts its own slope times the distance from the scores (Press). Nothing is learned."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width

    def distances(self, keys: int, clamp: int | None, like: Tensor) -> RelativeKeys:
        """The same for all layers: distances R-1 … 0, minus the clamp's where the clamp is reached."""
        farthest = keys - 1 if clamp is None else min(keys - 1, clamp)
        back = torch.arange(farthest, -1, -1, device=like.device, dtype=like.dtype)
        slopes = torch.tensor(alibi_slopes(self.heads), dtype=like.dtype).to(like.device, non_blocking=True)
        bias = -back[:, None] * slopes * self.head_width**0.5  # all scores will be divided by this root
        bias = bias[1:] - bias[:1] if farthest == clamp else bias
        nothing = torch.zeros(self.heads, self.head_width, device=like.device, dtype=like.dtype)
        return RelativeKeys(bias.new_zeros(len(bias), self.heads, 0), nothing, nothing, bias)

    def relative_keys(self, layer: int, distances: Any) -> RelativeKeys:  # noqa: ARG002
        relative: RelativeKeys = distances
        return relative


def alibi_slopes(heads: int) -> list[float]:
    """The published slopes: 2^(-8 i / H); where H is no power of two, those of the next lower one and some between."""
    lower = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (number + 1) / lower) for number in range(lower)]
    between = [2 ** (-8 * (number + 1) / (2 * lower)) for number in range(0, 2 * lower, 2)]
    return slopes + between[: heads - lower]


class RotaryPositions(Positions):
    """`rotary`: queries and keys are turned by their positions (Su). Nothing is learned."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.head_width = config.head_width

    def distances(self, keys: int, clamp: int | None, like: Tensor) -> Rotation:  # noqa: ARG002
        """The rotation of S keys, numbered from the oldest."""
        return rotation(torch.arange(keys, device=like.device)[:, None], self.head_width, like.dtype)

    def relative_keys(self, layer: int, distances: Any) -> Rotation:  # noqa: ARG002
        turning: Rotation = distances
        return turning


class SinusoidalPositions(Positions):
    """`sinusoidal`: the sinusoid of the place, added to the embedding (Vaswani)."""

    def embedded(self, hidden: Tensor, places: Tensor) -> Tensor:
        return hidden + sinusoids(places, hidden.size(-1), hidden.dtype)


class LearnedPositions(Positions):
    """`learned`: a learned vector for each place, added to the embedding (BERT, GPT)."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.max_positions, config.width))

    def embedded(self, hidden: Tensor, places: Tensor) -> Tensor:
        return hidden + self.table[places]


class PerLayerPositions(Positions):
    """`per-layer`: a learned vector for each place and layer, added to what enters the layer (Al-Rfou)."""

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.layers, config.max_positions, config.width))

    def layer_input(self, layer: int, hidden: Tensor, places: Tensor) -> Tensor:
        return hidden + self.table[layer][places]


def build_positions(config: XLConfig) -> Positions:
    if config.encoding == "xl":
        return XLPositions(config, config.layers, 1 if config.biases == "shared" else config.layers)
    built: Positions = CLASSES[config.encoding](config)
    return built


CLASSES: dict[str, Callable[[XLConfig], Positions]] = {
    "shaw": ShawPositions,
    "sinusoidal": lambda _: SinusoidalPositions(),
    "learned": LearnedPositions,
    "per-layer": PerLayerPositions,
    "rotary": RotaryPositions,
    "alibi": ALiBiPositions,
    "none": lambda _: Positions(),
}
"""By the names of `config.ENCODINGS`; `xl` has two shapes of biases."""


def check_places(places: Tensor, config: XLConfig) -> None:
    """Refuse to read beyond the table of positions. (`places` are on the CPU, so this never waits for a GPU.)"""
    farthest = int(places.max())
    if config.encoding in ("learned", "per-layer") and farthest >= config.max_positions:
        raise InputError(
            f"position {farthest} lies beyond the table of {config.max_positions} positions; "
            "start a new memory sooner, read isolated segments (Reach(memory=0, positions='restart')), "
            "or use a relative encoding"
        )
