"""What the sinusoids look like: every place has its own, and likeness falls with distance.

Letters: C width, R the sinusoid of a distance.
"""

from typing import Any

import torch

from segue.lab.drawing import HEAT, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.nn.positions import interleaved_sinusoids, sinusoids

PLACES, WIDTH = 50, 128
FAR = 10_000
"""Places that are compared each with each other's nearest."""


def measure(setting: Setting) -> Results:
    """Everything is computed in float64; nothing is random and nothing is trained."""
    table = interleaved_sinusoids(torch.arange(PLACES), WIDTH, torch.float64)
    distances = torch.arange(0, 2 * PLACES)
    clamp = PLACES
    clamped = sinusoids(distances.clamp(max=clamp), WIDTH, torch.float64)
    setting.report("positions", 1, 2)
    many = sinusoids(torch.arange(FAR), WIDTH, torch.float64)
    nearest = _nearest(many)
    setting.report("positions", 2, 2)
    return {
        "places": PLACES,
        "width": WIDTH,
        "table": _rounded(table),
        "products": _rounded(table @ table.T),
        "likeness": _rounded(_by_distance(many, 2 * PLACES)),
        "unlike": _unlike(table @ table.T),
        "compared": FAR,
        "nearest": nearest,
        "exact_in_float32": float(
            (sinusoids(torch.arange(FAR), WIDTH, torch.float32).double() - many).abs().max()
        ),
        "clamp": clamp,
        "clamped": _rounded(clamped),
        "distinct_with_clamp": len({tuple(row) for row in clamped.tolist()}),
        "distances": len(distances),
    }


def _nearest(rows: torch.Tensor) -> float:
    """The smallest distance between any two of the rows, some rows at a time."""
    smallest = float("inf")
    squares = (rows**2).sum(dim=1)
    for begin in range(0, len(rows), 500):
        some = rows[begin : begin + 500]
        apart = squares[begin : begin + 500, None] + squares - 2 * some @ rows.T
        apart[torch.arange(len(some)), torch.arange(begin, begin + len(some))] = float("inf")
        smallest = min(smallest, float(apart.min().clamp(min=0).sqrt()))
    return smallest


def _by_distance(rows: torch.Tensor, farthest: int) -> torch.Tensor:
    """(farthest,) The dot product of two sinusoids so far apart, which does not depend on where they are."""
    return rows[:farthest] @ rows[0]


def _unlike(products: torch.Tensor) -> float:
    """How much products of places equally far apart differ, at most."""
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
        "A Transformer sees a set of tokens, not a row of them; a sinusoid of many wavelengths, added to each token "
        "or to each distance, tells it the order. The first picture is that table: a row for each place, a column for "
        "each dimension, fast waves on the left and slow ones on the right. "
        "Nothing is trained here: both verdicts are about the formula, computed.",
        Verdict(
            f"The sinusoids of {results['compared']:,} places are all distinct.",
            results["nearest"] > results["exact_in_float32"],
            f"the two most alike are {results['nearest']:.3f} apart, and float32 blurs a value by at most "
            f"{results['exact_in_float32']:.1e}",
        ),
        Verdict(
            "A place is more like itself than like any other, and likeness depends on the distance alone.",
            itself and results["unlike"] < 1e-6,
            f"products of places equally far apart differ by at most {results['unlike']:.1e}; the product with "
            f"itself is {products[0][0]:.1f} (half the width of {width}), with the next place "
            f"{products[0][1]:.1f}, ten places on {products[0][10]:.1f}",
        ),
        "Transformer-XL takes the same waves of the distance between two tokens, not of their places. With a clamp, "
        "all distances beyond it look like the clamp, so that reading farther back than in training shows nothing new.",
        Table(
            ["clamp", "distances", "that can be told apart"],
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
        title=f"{results['places']} places × {results['width']} dimensions",
        xlabel="dimension",
        ylabel="place",
    )
    figure.colorbar(image, ax=left)
    image = right.imshow(results["products"], cmap=HEAT, interpolation="nearest")
    right.set(title="dot products", xlabel="place", ylabel="place")
    figure.colorbar(image, ax=right)
    clamped, (left, right) = canvas(1, 2, width=9.5, height=3.4)
    left.grid(visible=False)
    left.imshow(results["clamped"], aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    left.set(title=f"R by distance, clamp {results['clamp']}", xlabel="dimension", ylabel="distance")
    right.plot(results["likeness"])
    right.set(title="likeness by distance", xlabel="distance", ylabel="dot product")
    return [
        Picture("positions-table", "The sinusoids of places, and how alike two places are.", figure),
        Picture(
            "positions-distance",
            "The sinusoids of distances with a clamp, and likeness by distance.",
            clamped,
        ),
    ]


EXPERIMENT = Experiment(
    name="positions",
    claim="Sinusoids give every position its own vector, and the likeness of two depends on how far apart they are.",
    measure=measure,
    tell=tell,
    draw=draw,
)
