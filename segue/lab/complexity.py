"""How the cost of layers grows with the length n and the width d: time, products, memory, steps that must wait.

Time is the processor's, of one thread, so that others on the machine hardly disturb it. The rest is counted.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.layers import KERNEL, LAYERS, PATHS, SHORT, WINDOW, Build, costs, waiting
from segue.lab.published import published, source

CLOSE = 0.35
"""An exponent so near the published one counts as shown."""


FEW = (8, 16, 32, 64, 128)
"""Lengths for which waiting and paths are found."""


@dataclass(frozen=True)
class Sizes:
    """What is tried; the fit takes the upper half."""

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    width: int  # where n grows
    length: int  # where d grows
    repeats: int


QUICK = Sizes((256, 512, 1024, 2048, 4096), (64, 128, 256, 512, 1024), width=256, length=256, repeats=2)
FULL = Sizes(
    (256, 512, 1024, 2048, 4096, 8192), (64, 128, 256, 512, 1024, 2048), width=256, length=512, repeats=9
)


def measure(setting: Setting) -> Results:
    sizes = QUICK if setting.quick else FULL
    torch.manual_seed(setting.seed)
    by_length = [(length, sizes.width) for length in sizes.lengths]
    by_width = [(sizes.length, width) for width in sizes.widths]
    with _one_thread():
        times = _times(setting, sorted({*by_length, *by_width}), sizes.repeats)
    layers = {}
    for name, build in LAYERS.items():
        found = {"n": _grown(build, by_length), "d": _grown(build, by_width)}
        for axis, shapes in (("n", by_length), ("d", by_width)):
            found[axis]["seconds"] = [times[name, shape] for shape in shapes]
        layers[name] = {
            **found,
            "exponents": {
                what: {axis: _exponent(values["sizes"], values[what]) for axis, values in found.items()}
                for what in ("seconds", "products", "kept", "largest")
            },
        }
    return {
        "width": sizes.width,
        "length": sizes.length,
        "kernel": KERNEL,
        "window": WINDOW,
        "repeats": sizes.repeats,
        "layers": layers,
        "waiting": {name: [waiting(build, length) for length in FEW] for name, build in LAYERS.items()},
        "paths": {
            "lengths": list(FEW),
            **{name: [path(length) for length in FEW] for name, path in PATHS.items()},
        },
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _times(setting: Setting, shapes: Sequence[tuple[int, int]], repeats: int) -> dict[Any, float]:
    """The least of several, in rounds: what disturbs one disturbs all."""
    works = {(name, shape): LAYERS[name](shape[1]) for shape in shapes for name in LAYERS}
    states = {shape: torch.randn(shape) for shape in shapes}
    found = dict.fromkeys(works, math.inf)
    with torch.no_grad():
        for turn in range(repeats + 1):  # the first warms up
            for (name, shape), run in works.items():
                begin = time.process_time()
                run(states[shape])
                took = time.process_time() - begin
                found[name, shape] = min(found[name, shape], took if turn else math.inf)
            setting.report("timing layers", turn, repeats)
    return found


def _grown(build: Build, shapes: Sequence[tuple[int, int]]) -> Results:
    """What is counted at each of the shapes, of which either length or width grows."""
    found = [costs(build, length, width) for length, width in shapes]
    grows = 0 if len({length for length, _ in shapes}) > 1 else 1
    counted = {what: [one[what] for one in found] for what in found[0]}
    return {"sizes": [shape[grows] for shape in shapes], **counted}


def _exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The slope of a straight line through the upper half, both sides as logarithms."""
    first = (len(sizes) - 1) // 2
    points = [
        (math.log(size), math.log(max(value, 1e-12))) for size, value in zip(sizes, values, strict=True)
    ][first:]
    across, up = (sum(column) / len(points) for column in zip(*points, strict=True))
    rise, run = sum((x - across) * (y - up) for x, y in points), sum((x - across) ** 2 for x, _ in points)
    return float(round(rise / run, 3))


def crossing(results: Results, what: str) -> dict[str, float | None]:
    """The length from which attention costs more than a recurrent layer, interpolated; None if not that far."""
    one, other = (results["layers"][name]["n"] for name in ("self-attention", "recurrent"))
    ratios = [math.log(mine / theirs) for mine, theirs in zip(one[what], other[what], strict=True)]
    sizes = [math.log(size) for size in one["sizes"]]
    for place in range(1, len(ratios)):
        if ratios[place - 1] < 0 <= ratios[place]:
            share = -ratios[place - 1] / (ratios[place] - ratios[place - 1])
            return {"at": math.exp(sizes[place - 1] + share * (sizes[place] - sizes[place - 1]))}
    return {"at": None, "above": one["sizes"][-1] if ratios[-1] < 0 else None}


def _crossed(results: Results, what: str) -> str:
    found = crossing(results, what)
    if found["at"] is not None:
        return f"n = {found['at']:,.0f}"
    return f"n above {found['above']:,}" if found["above"] else "no length that was tried"


def tell(results: Results) -> list[Block]:
    layers, theirs = results["layers"], published("complexity")
    linear, whole = (layers[name]["exponents"] for name in ("restricted attention", "self-attention"))
    return [
        "What a layer costs decides how long a text it can read. Self-attention compares every token with every "
        "other: n² d. A recurrent layer multiplies each token by a matrix, n d², but every token must wait for the "
        f"one before. A convolution sees {results['kernel']} tokens at once, and restricted attention the last "
        f"{results['window']}: both grow with n alone, but need many layers for what is far apart. Below, the "
        "exponents that fit what was measured.",
        _growth(results, "products", "Products grow as published: n² d, n d², k n d², r n d."),
        _growth(results, "seconds", "So does the time they take."),
        Verdict(
            "Restricted attention is linear in the length: no tensor anywhere grows with n².",
            linear["largest"]["n"] < 1.1 and linear["kept"]["n"] < 1.1,
            f"the largest tensor grows as n^{linear['largest']['n']:.2f}, what is kept for learning as "
            f"n^{linear['kept']['n']:.2f}; in full attention as n^{whole['largest']['n']:.2f} and "
            f"n^{whole['kept']['n']:.2f}",
        ),
        _cheaper(results),
        Table(
            ["layer", "published", "products", "time", "kept to learn", "must wait", "path"],
            [_line(results, name, row) for name, row in theirs["layers"].items()],
            "Exponents fitted to the upper half of what was tried; operations that wait for each other and layers on "
            f"the longest path at n = {results['paths']['lengths'][-1]} (windows of {SHORT} there). "
            f"Published: {source(theirs['source'])}.",
        ),
    ]


def _growth(results: Results, what: str, claim: str) -> Verdict:
    theirs = published("complexity")["layers"]
    found = {name: results["layers"][name]["exponents"][what] for name in theirs}
    near = all(
        abs(found[name][axis] - row[axis]) < CLOSE for name, row in theirs.items() for axis in ("n", "d")
    )
    because = "; ".join(_fitted(name, exponents) for name, exponents in found.items())
    return Verdict(
        claim, near, f"{because} (each exponent within {CLOSE} of the published one counts as shown)"
    )


def _cheaper(results: Results) -> Verdict:
    """At one length, the widths above it; at one width, the length from which it turns."""
    mine, other = (results["layers"][name]["d"] for name in ("self-attention", "recurrent"))
    triples = zip(mine["sizes"], mine["products"], other["products"], strict=True)
    cheap = [less < more for width, less, more in triples if results["length"] < width]
    return Verdict(
        "Self-attention is cheaper than recurrence while n < d.",
        bool(cheap) and all(cheap),
        f"with n = {results['length']} it takes fewer products at {sum(cheap)} of {len(cheap)} widths above n; at "
        f"width {results['width']} it costs more products from {_crossed(results, 'products')} on, and more time from "
        f"{_crossed(results, 'seconds')} on",
    )


def _fitted(name: str, exponents: Results) -> str:
    return f"{name} n^{exponents['n']:.2f} d^{exponents['d']:.2f}"


def _line(results: Results, name: str, row: Results) -> list[str]:
    found, paths = results["layers"][name]["exponents"], results["paths"]
    path = f"{paths[name][-1]}"
    if name == "convolution":
        path += f" (dilated {paths['dilated convolution'][-1]})"
    power = "n^{n:.2f} d^{d:.2f}"
    return [
        name,
        row["said"],
        power.format(**found["products"]),
        power.format(**found["seconds"]),
        power.format(**found["kept"]),
        f"{results['waiting'][name][-1]} ({row['waiting']})",
        f"{path} ({row['path']})",
    ]


def draw(results: Results) -> list[Picture]:
    figure, axes = canvas(2, 2, width=10, height=6.4)
    for axis, (grows, what, label) in zip(
        axes,
        [
            ("n", "seconds", f"seconds, d = {results['width']}"),
            ("d", "seconds", f"seconds, n = {results['length']}"),
            ("n", "kept", f"bytes kept to learn, d = {results['width']}"),
            ("n", "products", f"products, d = {results['width']}"),
        ],
        strict=True,
    ):
        for name, found in results["layers"].items():
            axis.loglog(found[grows]["sizes"], found[grows][what], "o-", label=name, markersize=4)
        axis.set(xlabel=grows, ylabel=label)
        sizes = next(iter(results["layers"].values()))[grows]["sizes"]
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes[0].legend(fontsize="small")
    caption = "Time, memory kept for the backward pass, and products, as length and width grow."
    return [Picture("complexity", caption, figure)]


EXPERIMENT = Experiment(
    name="complexity",
    claim="Self-attention costs n² d, recurrence n d² one step after the other, convolution k n d², attention "
    "restricted to a window r n d; any two tokens are one step apart in self-attention alone.",
    measure=measure,
    tell=tell,
    draw=draw,
)
