"""How the cost of layers grows with length n, width d, kernel k, window r: time, products, memory, steps that wait.

Time is the processor's, of one thread, so that others on the machine hardly disturb it. The rest is counted.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.layers import KERNEL, LAYERS, PATHS, REACHING, SHORT, WINDOW, Build, costs, waiting
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
    reaches: dict[str, tuple[int, ...]]  # kernels and windows
    width: int  # where n grows
    length: int  # where d grows
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
NARROW, FARTHER = 64, 8
"""Where kernel or window grows: the width, and how many times the longest of them the text is."""


class Case(NamedTuple):
    build: Build
    length: int
    width: int


Axes = dict[str, dict[int, Case]]
"""What grows, by its letter, and the case for each of its sizes."""


def _axes(name: str, sizes: Sizes) -> Axes:
    build = LAYERS[name]
    axes = {
        "n": {length: Case(build, length, sizes.width) for length in sizes.lengths},
        "d": {width: Case(build, sizes.length, width) for width in sizes.widths},
    }
    if name in REACHING:
        letter, reaching = REACHING[name]
        far = FARTHER * max(sizes.reaches[letter])
        axes[letter] = {reach: Case(reaching(reach), far, NARROW) for reach in sizes.reaches[letter]}
    return axes


def measure(setting: Setting) -> Results:
    sizes = QUICK if setting.quick else FULL
    torch.manual_seed(setting.seed)
    axes = {name: _axes(name, sizes) for name in LAYERS}
    with _one_thread():
        times = _times(setting, axes, sizes.repeats)
    layers = {}
    for name in LAYERS:
        found = {
            letter: _grown(cases) | {"seconds": [times[name, letter, size] for size in cases]}
            for letter, cases in axes[name].items()
        }
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


def _times(setting: Setting, layers: dict[str, Axes], repeats: int) -> dict[tuple[str, str, int], float]:
    """The least of several, in rounds: what disturbs one disturbs all."""
    works = {
        (name, letter, size): (case.build(case.width), torch.randn(case.length, case.width))
        for name, axes in layers.items()
        for letter, cases in axes.items()
        for size, case in cases.items()
    }
    found = dict.fromkeys(works, math.inf)
    with torch.no_grad():
        for turn in range(repeats + 1):  # the first warms up
            for key, (run, states) in works.items():
                begin = time.process_time()
                run(states)
                took = time.process_time() - begin
                found[key] = min(found[key], took if turn else math.inf)
            setting.report("timing layers", turn, repeats)
    return found


def _grown(cases: dict[int, Case]) -> Results:
    """What is counted at each of the sizes."""
    found = [costs(*case) for case in cases.values()]
    return {"sizes": list(cases), **{what: [one[what] for one in found] for what in found[0]}}


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
            "Restricted attention is linear in the length, in products and in memory; full attention is not.",
            _linear(linear) and not _linear(whole),
            f"{_memory(linear)}; in full attention {_memory(whole)} (it is computed in windows, so that its memory "
            "need not grow with n²; an exponent below 1.1 counts as linear)",
        ),
        _cheaper(results),
        Table(
            ["layer", "published", "products", "time", "kept to learn", "must wait", "path"],
            [_line(results, name, row) for name, row in theirs["layers"].items()],
            "Exponents fitted to the upper half of what was tried; operations that wait for each other, and layers "
            "from the first token to the last (in the recurrent one, steps), found by following gradients back, at "
            f"n = {results['paths']['lengths'][-1]} (windows of {SHORT} there). "
            f"Published: {source(theirs['source'])}.",
        ),
    ]


LINEAR = ("products", "largest", "kept")


def _linear(exponents: Results) -> bool:
    return all(exponents[what]["n"] < 1.1 for what in LINEAR)


def _memory(exponents: Results) -> str:
    products, largest, kept = (f"n^{exponents[what]['n']:.2f}" for what in LINEAR)
    return (
        f"products grow as {products}, the largest tensor as {largest}, what is kept for learning as {kept}"
    )


def _growth(results: Results, what: str, claim: str) -> Verdict:
    theirs = published("complexity")["layers"]
    found = {name: results["layers"][name]["exponents"][what] for name in theirs}
    near = all(
        abs(power - theirs[name][letter]) < CLOSE
        for name, powers in found.items()
        for letter, power in powers.items()
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
    return f"{name} {_power(exponents)}"


def _power(exponents: Results) -> str:
    return " ".join(f"{letter}^{exponent:.2f}" for letter, exponent in exponents.items())


def _line(results: Results, name: str, row: Results) -> list[str]:
    found, paths = results["layers"][name]["exponents"], results["paths"]
    path = f"{paths[name][-1]}"
    if name == "convolution":
        path += f" (dilated {paths['dilated convolution'][-1]})"
    return [
        name,
        row["said"],
        *[_power(found[what]) for what in ("products", "seconds", "kept")],
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
    version=3,
)
