"""Complexity per layer in length n, width d, kernel k, window r: time, multiplications, memory, sequential operations.

Time is CPU time of one thread, so that other processes hardly disturb it. The rest is counted.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.layers import (
    KERNEL,
    LAYERS,
    PATH_WINDOW,
    PATHS,
    REACHING,
    WINDOW,
    Build,
    costs,
    sequential_operations,
)
from segue.lab.published import published, source
from segue.lab.threads import threads

EXPONENT_TOLERANCE = 0.35
"""An exponent that is nearer to the published one than this counts as shown."""

PATH_LENGTHS = (8, 16, 32, 64, 128)
"""Lengths for which sequential operations and path lengths are computed."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that are measured; exponents are fitted to the upper half."""

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    reaches: dict[str, tuple[int, ...]]  # kernels and windows
    width: int  # while n grows
    length: int  # while d grows
    repeats: int


QUICK = Sizes(
    (256, 512, 1024, 2048, 4096),
    (64, 128, 256, 512, 1024),
    {"k": (5, 9, 17, 33, 65), "r": (64, 128, 256, 512, 1024)},
    width=256,
    length=256,
    repeats=2,
)
FULL = Sizes(
    (256, 512, 1024, 2048, 4096, 8192),
    (64, 128, 256, 512, 1024, 2048),
    {"k": (5, 9, 17, 33, 65, 129), "r": (64, 128, 256, 512, 1024, 2048)},
    width=256,
    length=512,
    repeats=9,
)
REACH_WIDTH, LENGTHS_PER_REACH = 64, 8
"""While kernel or window grows: the width, and the length in multiples of the largest kernel or window."""


class Case(NamedTuple):
    build: Build
    length: int
    width: int


Axes = dict[str, dict[int, Case]]
"""The cases of each growing size, by its letter."""


def _axes(name: str, sizes: Sizes) -> Axes:
    build = LAYERS[name]
    axes = {
        "n": {length: Case(build, length, sizes.width) for length in sizes.lengths},
        "d": {width: Case(build, sizes.length, width) for width in sizes.widths},
    }
    if name in REACHING:
        letter, reaching = REACHING[name]
        far = LENGTHS_PER_REACH * max(sizes.reaches[letter])
        axes[letter] = {reach: Case(reaching(reach), far, REACH_WIDTH) for reach in sizes.reaches[letter]}
    return axes


def measure(setting: Setting) -> Results:
    sizes = QUICK if setting.quick else FULL
    torch.manual_seed(setting.seed)
    axes = {name: _axes(name, sizes) for name in LAYERS}
    with threads(1):
        times = _times(setting, axes, sizes.repeats)
    layers = {}
    for name in LAYERS:
        by_letter = {
            letter: _counted(cases) | {"seconds": [times[name, letter, size] for size in cases]}
            for letter, cases in axes[name].items()
        }
        layers[name] = {
            **by_letter,
            "exponents": {
                what: {axis: _exponent(values["sizes"], values[what]) for axis, values in by_letter.items()}
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
        "waiting": {
            name: [sequential_operations(build, length) for length in PATH_LENGTHS]
            for name, build in LAYERS.items()
        },
        "paths": {
            "lengths": list(PATH_LENGTHS),
            **{name: [path(length) for length in PATH_LENGTHS] for name, path in PATHS.items()},
        },
    }


def _times(setting: Setting, layers: dict[str, Axes], repeats: int) -> dict[tuple[str, str, int], float]:
    """The shortest of several times, in interleaved rounds: a disturbance affects all cases."""
    works = {
        (name, letter, size): (case.build(case.width), torch.randn(case.length, case.width))
        for name, axes in layers.items()
        for letter, cases in axes.items()
        for size, case in cases.items()
    }
    shortest = dict.fromkeys(works, math.inf)
    with torch.no_grad():
        for turn in range(repeats + 1):  # the first warms up
            for key, (run, states) in works.items():
                begin = time.process_time()
                run(states)
                took = time.process_time() - begin
                shortest[key] = min(shortest[key], took if turn else math.inf)
            setting.report("timing layers", turn, repeats)
    return shortest


def _counted(cases: dict[int, Case]) -> Results:
    """The counted costs at each size."""
    counts = [costs(*case) for case in cases.values()]
    return {"sizes": list(cases), **{what: [one[what] for one in counts] for what in counts[0]}}


def _exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The slope of the least-squares line through (log size, log value) of the upper half."""
    first = (len(sizes) - 1) // 2
    points = [
        (math.log(size), math.log(max(value, 1e-12))) for size, value in zip(sizes, values, strict=True)
    ][first:]
    across, up = (sum(column) / len(points) for column in zip(*points, strict=True))
    rise, run = sum((x - across) * (y - up) for x, y in points), sum((x - across) ** 2 for x, _ in points)
    return float(round(rise / run, 3))


def crossing(results: Results, what: str) -> dict[str, float | None]:
    """The interpolated length from which self-attention costs more than recurrence; None beyond the measured ones."""
    one, other = (results["layers"][name]["n"] for name in ("self-attention", "recurrent"))
    ratios = [math.log(mine / theirs) for mine, theirs in zip(one[what], other[what], strict=True)]
    sizes = [math.log(size) for size in one["sizes"]]
    for place in range(1, len(ratios)):
        if ratios[place - 1] < 0 <= ratios[place]:
            share = -ratios[place - 1] / (ratios[place] - ratios[place - 1])
            return {"at": math.exp(sizes[place - 1] + share * (sizes[place] - sizes[place - 1]))}
    return {"at": None, "above": one["sizes"][-1] if ratios[-1] < 0 else None}


def _crossed(results: Results, what: str) -> str:
    length = crossing(results, what)
    if length["at"] is not None:
        return f"n = {length['at']:,.0f}"
    return f"n above {length['above']:,}" if length["above"] else "no measured length"


def tell(results: Results) -> list[Block]:
    layers, theirs = results["layers"], published("complexity")
    restricted, full = (layers[name]["exponents"] for name in ("restricted attention", "self-attention"))
    return [
        "The cost of a layer limits the length of the text it can read. Self-attention compares every token with "
        "every other: n² d. A recurrent layer multiplies each token by a matrix, n d², but each token must wait for "
        f"the one before it. A convolution sees {results['kernel']} tokens at once, and restricted attention the last "
        f"{results['window']}: both are linear in n, but need many layers to connect distant tokens. Below are the "
        "exponents fitted to the measurements.",
        _growth(results, "products", "Multiplications grow as published: n² d, n d², k n d², r n d."),
        _growth(results, "seconds", "Time grows in the same way."),
        Verdict(
            "Restricted attention is linear in length, in multiplications and memory; full attention multiplies more.",
            _linear(restricted) and full["products"]["n"] >= LINEAR_BELOW,
            f"{_memory(restricted)}; in full attention {_memory(full)} (it is computed in blocks, so that its memory "
            "need not grow with n²; large weights are not saved for the backward pass but computed again there; an "
            f"exponent below {LINEAR_BELOW} counts as linear)",
        ),
        _cheaper(results),
        Table(
            [
                "layer",
                "published",
                "multiplications",
                "time",
                "saved for backward",
                "sequential operations",
                "path length",
            ],
            [_line(results, name, row) for name, row in theirs["layers"].items()],
            "Exponents fitted to the larger half of the sizes; sequential operations, and the maximum path length in "
            "layers from the first token to the last (in steps of the recurrent layer), found by following gradients, "
            f"at n = {results['paths']['lengths'][-1]} (windows of {PATH_WINDOW} there). "
            f"Published: {source(theirs['source'])}.",
        ),
    ]


LINEAR, LINEAR_BELOW = ("products", "largest", "kept"), 1.1


def _linear(exponents: Results) -> bool:
    return all(exponents[what]["n"] < LINEAR_BELOW for what in LINEAR)


def _memory(exponents: Results) -> str:
    products, largest, saved = (f"n^{exponents[what]['n']:.2f}" for what in LINEAR)
    return f"multiplications grow as {products}, the largest tensor as {largest}, tensors saved for backward as {saved}"


def _growth(results: Results, what: str, claim: str) -> Verdict:
    theirs = published("complexity")["layers"]
    ours = {name: results["layers"][name]["exponents"][what] for name in theirs}
    near = all(
        abs(power - theirs[name][letter]) < EXPONENT_TOLERANCE
        for name, powers in ours.items()
        for letter, power in powers.items()
    )
    because = "; ".join(f"{name} {_power(exponents)}" for name, exponents in ours.items())
    return Verdict(
        claim,
        near,
        f"{because} (each exponent within {EXPONENT_TOLERANCE} of the published one counts as shown)",
    )


def _cheaper(results: Results) -> Verdict:
    """Compared at one length for all larger widths, and at one width by the length where the order changes."""
    mine, other = (results["layers"][name]["d"] for name in ("self-attention", "recurrent"))
    triples = zip(mine["sizes"], mine["products"], other["products"], strict=True)
    cheap = [less < more for width, less, more in triples if results["length"] < width]
    return Verdict(
        "Self-attention is cheaper than recurrence while n < d.",
        bool(cheap) and all(cheap),
        f"with n = {results['length']} it takes fewer multiplications at {sum(cheap)} of {len(cheap)} widths above n; "
        f"at width {results['width']} it takes more multiplications from {_crossed(results, 'products')} on, and more "
        f"time from {_crossed(results, 'seconds')} on",
    )


def _power(exponents: Results) -> str:
    return " ".join(f"{letter}^{exponent:.2f}" for letter, exponent in exponents.items())


def _line(results: Results, name: str, row: Results) -> list[str]:
    exponents, paths = results["layers"][name]["exponents"], results["paths"]
    path = f"{paths[name][-1]}"
    if name == "convolution":
        path += f" (dilated {paths['dilated convolution'][-1]})"
    return [
        name,
        row["said"],
        *[_power(exponents[what]) for what in ("products", "seconds", "kept")],
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
            ("n", "kept", f"bytes saved for backward, d = {results['width']}"),
            ("n", "products", f"multiplications, d = {results['width']}"),
        ],
        strict=True,
    ):
        for name, layer in results["layers"].items():
            axis.loglog(layer[grows]["sizes"], layer[grows][what], "o-", label=name, markersize=4)
        axis.set(xlabel=grows, ylabel=label)
        sizes = next(iter(results["layers"].values()))[grows]["sizes"]
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes[0].legend(fontsize="small")
    caption = "Time, memory saved for the backward pass, and multiplications, by length and width."
    return [Picture("complexity", caption, figure)]


EXPERIMENT = Experiment(
    name="complexity",
    claim="Self-attention costs n² d, recurrence n d² in n sequential steps, convolution k n d², attention "
    "restricted to a window r n d; only in self-attention is the path between any two tokens one step.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=3,
)
