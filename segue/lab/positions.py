"""Sinusoidal positional encodings: every position has its own vector, and similarity depends on distance.

Letters: C width, R the encoding of a distance.
"""

from typing import Any

import torch

from segue.lab.drawing import HEAT, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.nn.positions import interleaved_sinusoids, sinusoids

POSITIONS, WIDTH = 50, 128
COMPARED_POSITIONS = 10_000
"""The number of positions among which the two nearest encodings are found."""


def measure(setting: Setting) -> Results:
    """Everything is computed in float64; nothing is random and nothing is trained."""
    table = interleaved_sinusoids(torch.arange(POSITIONS), WIDTH, torch.float64)
    distances = torch.arange(0, 2 * POSITIONS)
    clamp = POSITIONS
    clamped = sinusoids(distances.clamp(max=clamp), WIDTH, torch.float64)
    setting.report("positions", 1, 2)
    many = sinusoids(torch.arange(COMPARED_POSITIONS), WIDTH, torch.float64)
    nearest = _nearest(many)
    setting.report("positions", 2, 2)
    return {
        "places": POSITIONS,
        "width": WIDTH,
        "table": _rounded(table),
        "products": _rounded(table @ table.T),
        "likeness": _rounded(_by_distance(many, 2 * POSITIONS)),
        "unlike": _unlike(table @ table.T),
        "compared": COMPARED_POSITIONS,
        "nearest": nearest,
        "exact_in_float32": float(
            (sinusoids(torch.arange(COMPARED_POSITIONS), WIDTH, torch.float32).double() - many).abs().max()
        ),
        "clamp": clamp,
        "clamped": _rounded(clamped),
        "distinct_with_clamp": len({tuple(row) for row in clamped.tolist()}),
        "distances": len(distances),
    }


def _nearest(rows: torch.Tensor) -> float:
    """The smallest Euclidean distance between any two rows, computed block by block."""
    smallest = float("inf")
    squares = (rows**2).sum(dim=1)
    for begin in range(0, len(rows), 500):
        some = rows[begin : begin + 500]
        apart = squares[begin : begin + 500, None] + squares - 2 * some @ rows.T
        apart[torch.arange(len(some)), torch.arange(begin, begin + len(some))] = float("inf")
        smallest = min(smallest, float(apart.min().clamp(min=0).sqrt()))
    return smallest


def _by_distance(rows: torch.Tensor, farthest: int) -> torch.Tensor:
    """(farthest,) Dot products by distance; they do not depend on the positions themselves."""
    return rows[:farthest] @ rows[0]


def _unlike(products: torch.Tensor) -> float:
    """The largest difference between dot products of positions at the same distance."""
    diagonals = (products.diagonal(offset) for offset in range(len(products)))
    return max(float(diagonal.max() - diagonal.min()) for diagonal in diagonals)


def _rounded(tensor: torch.Tensor) -> Any:
    return (
        [round(value, 4) for value in tensor.tolist()]
        if tensor.dim() == 1
        else [_rounded(row) for row in tensor]
    )


def tell(results: Results) -> list[Block]:
    products, width = results["products"], results["width"]
    itself = all(products[0][0] > value for value in products[0][1:])
    return [
        "Attention alone does not know the order of tokens; sinusoids of many wavelengths, computed from the position "
        "of a token or from the distance between two, encode it. The first picture is their table: a row for each "
        "position, a column for each dimension, high frequencies on the left and low ones on the right. "
        "Nothing is trained here: both verdicts are about the formula.",
        Verdict(
            f"The encodings of {results['compared']:,} positions are all distinct.",
            results["nearest"] > results["exact_in_float32"],
            f"the two nearest are {results['nearest']:.3f} apart, and float32 changes a value by at most "
            f"{results['exact_in_float32']:.1e}",
        ),
        Verdict(
            "The encoding of a position is most similar to itself, and similarity depends on the distance only.",
            itself and results["unlike"] < 1e-6,
            f"dot products at the same distance differ by at most {results['unlike']:.1e}; the dot product with "
            f"itself is {products[0][0]:.1f} (half the width of {width}), with the next position "
            f"{products[0][1]:.1f}, with the tenth {products[0][10]:.1f}",
        ),
        "Transformer-XL encodes the distance between two tokens, not their positions. With a clamp, all longer "
        "distances have the encoding of the clamp, so that a longer context than in training has no unknown distance.",
        Table(
            ["clamp", "distances", "distinct encodings"],
            [[f"{results['clamp']}", f"{results['distances']}", f"{results['distinct_with_clamp']}"]],
        ),
    ]


def draw(results: Results) -> list[Picture]:
    figure, (left, right) = canvas(1, 2, width=9.5, height=3.8)
    for axis in (left, right):
        axis.grid(visible=False)
    image = left.imshow(
        results["table"], aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest"
    )
    left.set(
        title=f"{results['places']} positions × {results['width']} dimensions",
        xlabel="dimension",
        ylabel="position",
    )
    figure.colorbar(image, ax=left)
    image = right.imshow(results["products"], cmap=HEAT, interpolation="nearest")
    right.set(title="dot products", xlabel="position", ylabel="position")
    figure.colorbar(image, ax=right)
    clamped, (left, right) = canvas(1, 2, width=9.5, height=3.4)
    left.grid(visible=False)
    left.imshow(results["clamped"], aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    left.set(title=f"R by distance, clamp {results['clamp']}", xlabel="dimension", ylabel="distance")
    right.plot(results["likeness"])
    right.set(title="similarity by distance", xlabel="distance", ylabel="dot product")
    return [
        Picture(
            "positions-table", "The sinusoids of positions, and the similarity of two positions.", figure
        ),
        Picture(
            "positions-distance",
            "The sinusoids of distances with a clamp, and similarity by distance.",
            clamped,
        ),
    ]


EXPERIMENT = Experiment(
    name="positions",
    claim="Sinusoids give every position its own vector, and the similarity of two depends on their distance.",
    measure=measure,
    tell=tell,
    draw=draw,
)
