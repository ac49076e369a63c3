"""Sinusoidal positional encodings: every position has its own vector, and similarity depends on distance.

What is said of them besides is tested as it is said: that similarity falls with every longer distance, and that models
with them generalize to longer sequences, for which the records of other experiments in the same folder are read.
Letters: C width, R the encoding of a distance.
"""

from typing import Any

import torch

from segue.lab.drawing import HEAT, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict, experiment
from segue.lab.lengths import at_seen_places, beyond, generalizes
from segue.lab.record import read_record
from segue.lab.statistics import MARGIN, mean, plus_minus, seed_count
from segue.nn.positions import interleaved_sinusoids, sinusoids

POSITIONS, WIDTH = 50, 128
COMPARED_POSITIONS = 10_000
"""The number of positions among which the two nearest encodings are found, and of distances that are compared."""

FALLING_WIDTHS = (WIDTH, 512)
"""The widths whose dot products are followed over all distances; 512 is the paper's."""


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
        "falling": [rises(width, COMPARED_POSITIONS) for width in FALLING_WIDTHS],
        "confronted": confronted(setting),
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


def rises(width: int, distances: int) -> Results:
    """How often the dot product of two positions is larger at a distance than at the one before."""
    products = _by_distance(sinusoids(torch.arange(distances), width, torch.float64), distances)
    larger = (products.diff() > 0).nonzero().flatten() + 1
    return {
        "width": width,
        "distances": distances - 1,
        "rises": len(larger),
        "first": int(larger[0]) if len(larger) else None,
    }


def confronted(setting: Setting) -> Results:
    """What other experiments in the same folder measured of models with sinusoids; only those that are there."""
    measured: Results = {}
    if (results := _current_results(setting, "extrapolation")) is not None:
        side = results["sides"]["sinusoidal"]
        measured["extrapolation"] = {
            "lengths": side["lengths"][:2],
            "bits": [list(column) for column in zip(*side["bits"], strict=True)][:2],
        }
    if (results := _current_results(setting, "lengths")) is not None:
        side = results["sides"]["sinusoidal"]
        measured["lengths"] = {
            "lengths": [results["length"], 2 * results["length"]],
            "bits": [at_seen_places(side), beyond(side)],
            "generalizes": generalizes(side, results["unigram"]),
        }
    return measured


def _current_results(setting: Setting, name: str) -> Results | None:
    """The results of another experiment, if they are of its present version and as quick or full as this one."""
    record = read_record(setting.output, name)
    if record is None or record.version != experiment(name).version:
        return None
    return record.results if record.setting["quick"] == setting.quick else None


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
        "Nothing is trained here: the first three verdicts are about the formula, the last one about models that other "
        "experiments trained.",
        Verdict(
            f"The encodings of {results['compared']:,} positions are all distinct.",
            results["nearest"] > results["exact_in_float32"],
            f"the two nearest are {results['nearest']:.3f} apart, and float32 changes a value by at most "
            f"{results['exact_in_float32']:.1e}",
            sure="computed",
        ),
        Verdict(
            "The encoding of a position is most similar to itself, and similarity depends on the distance only.",
            itself and results["unlike"] < 1e-6,
            f"dot products at the same distance differ by at most {results['unlike']:.1e}; the dot product with "
            f"itself is {products[0][0]:.1f} (half the width of {width}), with the next position "
            f"{products[0][1]:.1f}, with the tenth {products[0][10]:.1f}",
            sure="computed",
        ),
        _falling(results["falling"]),
        *_generalization(results["confronted"]),
        "Transformer-XL encodes the distance between two tokens, not their positions. With a clamp, all longer "
        "distances have the encoding of the clamp, so that a longer context than in training has no unknown distance.",
        Table(
            ["clamp", "distances", "distinct encodings"],
            [[f"{results['clamp']}", f"{results['distances']}", f"{results['distinct_with_clamp']}"]],
        ),
    ]


def _falling(widths: list[Results]) -> Verdict:
    """The claim as it is made: every longer distance has a smaller dot product."""
    because = [
        f"at width {one['width']} it rises at {one['rises']:,} of {one['distances']:,} distances"
        + (f", first at {one['first']:,}" if one["rises"] else "")
        for one in widths
    ]
    return Verdict(
        "The dot product of two positions falls with the distance between them.",
        not any(one["rises"] for one in widths),
        "; ".join(because),
        size=because[0],
        sure="computed",
    )


def _generalization(measured: Results) -> list[Block]:
    """The claim against what was measured. A model that learned nothing loses nothing: one that learned must agree."""
    fails = {name: _gets_worse(one["bits"]) for name, one in measured.items()}
    if not any(fails.values()) and "lengths" not in measured:
        return [
            "Whether models with sinusoids generalize to longer sequences is measured by `extrapolation` and "
            "`lengths`. Run them in the same folder, then this experiment again."
        ]
    differences = {name: mean(one["bits"][1]) - mean(one["bits"][0]) for name, one in measured.items()}
    return [
        Verdict(
            "Models with sinusoids generalize to sequences longer than any in training.",
            not any(fails.values()) and bool(measured["lengths"]["generalizes"]),
            "; ".join(
                f"{UNITS[name]} {plus_minus(one['bits'][0])} at {one['lengths'][0]} tokens, "
                f"{plus_minus(one['bits'][1])} at {one['lengths'][1]} ({name}, {seed_count(one['bits'][0])})"
                for name, one in measured.items()
            ),
            size=", ".join(f"{change:+.3f} {UNITS[name]}" for name, change in differences.items()),
            sure=" and ".join(f"{seed_count(one['bits'][0])} of {name}" for name, one in measured.items()),
        )
    ]


UNITS = {"extrapolation": "bits per byte", "lengths": "bits per token"}


def _gets_worse(bits: list[list[float]]) -> bool:
    """Whether the longer length costs more with any seed."""
    return any(far > near + MARGIN for near, far in zip(*bits, strict=True))


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
    claim="Sinusoids give every position its own vector; similarity falls with distance; models generalize to longer "
    "sequences.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
    cacheable=False,  # it reads the records of other experiments
)
