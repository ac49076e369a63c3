"""Sequential against parallel: the time of a layer by the length of its sequences, on one thread and on two.

Every measurement reads the same number of tokens: as one batch of sequences, or one sequence after the other.
Sequential operations and path lengths are arithmetic, and marked as such. Letters: n tokens of a sequence, d width.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from segue.lab.cache import cached
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.record import machine
from segue.lab.sequence_layers import LAYERS, work
from segue.lab.threads import TURNS, on_threads

PASSES = {"forward": "forward", "training": "forward and backward"}
FAMILIES = {"batch": "as one batch", "single": "one sequence after the other"}

SAME, LONGER, GAIN = 1.5, 1.25, 1.3
"""Ratios of times: up to the first one they count as the same; beyond the second as longer, if all measurements agree;
from the third on as a speed-up by threads."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that are measured."""

    lengths: tuple[int, ...]  # each divides the tokens
    tokens: int  # of every measurement
    width: int
    repeats: int


QUICK = Sizes((32, 256, 1024), 1024, width=64, repeats=2)
FULL = Sizes((64, 256, 1024, 2048, 4096, 8192), 8192, width=256, repeats=5)


def measure(setting: Setting) -> Results:
    sizes = QUICK if setting.quick else FULL
    by_length = []
    for number, length in enumerate(sizes.lengths):
        setting.report("lengths", number, len(sizes.lengths))
        by_length.append(_measured(setting, sizes, length))
    seconds = {
        family: {
            run: {
                name: {turn: [one[family][f"{name}/{run}"][turn] for one in by_length] for turn in TURNS}
                for name in LAYERS
            }
            for run in PASSES
        }
        for family in FAMILIES
    }
    return {
        **asdict(sizes),
        "cores": len(os.sched_getaffinity(0)),
        "kinds": {name: layer.kind for name, layer in LAYERS.items()},
        "seconds": seconds,
        "arithmetic": {
            name: {
                "products": [layer.products(length, sizes.width) for length in sizes.lengths],
                "waits": [layer.waits(length) for length in sizes.lengths],
                "path": [layer.path(length) for length in sizes.lengths],
            }
            for name, layer in LAYERS.items()
        },
    }


def _measured(setting: Setting, sizes: Sizes, length: int) -> Results:
    """All times at one length, by family; from the cache if this machine has measured them before."""
    inputs = {**asdict(sizes), "lengths": length, "seed": setting.seed, "machine": machine()}
    times: Results = cached(setting, __name__, inputs, lambda: _times(setting, sizes, length))
    return times


def _times(setting: Setting, sizes: Sizes, length: int) -> Results:
    torch.manual_seed(setting.seed)
    sequences = sizes.tokens // length
    works = {
        "batch": dict(_works(length, sequences, 1, sizes.width)),
        "single": dict(_works(length, 1, sequences, sizes.width)),
    }
    return {family: on_threads(ones, sizes.repeats) for family, ones in works.items()}


def _works(length: int, lanes: int, times: int, width: int) -> Iterator[tuple[str, Callable[[], object]]]:
    for name, layer in LAYERS.items():
        for run, once in work(layer.build, length, lanes, width).items():
            yield f"{name}/{run}", _repeated(once, times)


def _repeated(once: Callable[[], object], times: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(times):
            once()

    return run


def of_kind(results: Results, kind: str) -> list[str]:
    return [name for name, one in results["kinds"].items() if one == kind]


def _fastest(results: Results, family: str, run: str, name: str, place: int) -> float:
    """Seconds on one thread: the faster of two measurements."""
    times = results["seconds"][family][run][name]
    return float(min(times["one"][place], times["again"][place]))


def growth(results: Results, family: str, run: str, name: str, since: int = 0) -> float:
    """How many times as long the longest sequences take as shorter ones, for the same tokens, on one thread."""
    return _fastest(results, family, run, name, -1) / _fastest(results, family, run, name, since)


def growths(results: Results, run: str, name: str) -> list[float]:
    """The least and the largest such ratio of any two measurements. The longest length is measured by both families."""
    longest = [
        results["seconds"][family][run][name][turn][-1] for family in FAMILIES for turn in ("one", "again")
    ]
    shortest = [results["seconds"]["batch"][run][name][turn][0] for turn in ("one", "again")]
    return [min(longest) / max(shortest), max(longest) / min(shortest)]


def rate_kept(results: Results, family: str, run: str, name: str) -> float:
    """The share of its multiplications per second that a layer still has at the longest length."""
    products = results["arithmetic"][name]["products"]
    return float(products[-1] / products[0] / growth(results, family, run, name))


def speed_ups(results: Results, run: str, name: str) -> list[float]:
    """What a second thread gains on one sequence of the longest length, which both families measure."""
    return [
        _fastest(results, family, run, name, -1) / results["seconds"][family][run][name]["two"][-1]
        for family in FAMILIES
    ]


def tell(results: Results) -> list[Block]:
    return [
        "A recurrent layer computes a token's state from the state before it: n steps, each of which waits for the "
        "one before. Convolution and self-attention compute all tokens side by side. Here each layer of width "
        f"{results['width']} reads {results['tokens']:,} tokens, cut into sequences of different lengths. The longer "
        "they are, the fewer there are to be computed side by side. Attention also multiplies more: its work grows "
        "with length, that of the others does not. A feed-forward layer, which connects no tokens, is the control: "
        "it shows what a second thread can gain on this machine.",
        *_verdicts(results),
        _times_table(results),
        _arithmetic_table(results),
    ]


def _verdicts(results: Results) -> Iterator[Block]:
    recurrent, parallel = of_kind(results, "recurrent"), of_kind(results, "parallel")
    convolutions = [name for name in parallel if name != "self-attention"]
    shortest, longest = results["lengths"][0], results["lengths"][-1]
    for run, words in PASSES.items():
        grown = {name: growths(results, run, name) for name in (*recurrent, *convolutions)}
        yield Verdict(
            f"The same tokens take a recurrent layer longer in long sequences, and a convolution not ({words}).",
            all(ratio > LONGER for name in recurrent for ratio in grown[name])
            and all(ratio <= LONGER for name in convolutions for ratio in grown[name]),
            f"in sequences of {longest:,} instead of {shortest} tokens: {_listed(grown)} (by any two measurements; "
            f"more than {LONGER:g} × counts as longer)",
        )
    kept = {name: rate_kept(results, "batch", "training", name) for name in ("self-attention", *recurrent)}
    yield Verdict(
        "Self-attention takes longer in long sequences because it multiplies more, not because it waits.",
        kept["self-attention"] >= 1 / SAME,
        f"multiplications per second at {longest:,} tokens, of those at {shortest}: "
        + ", ".join(f"{name} {100 * share:.0f} %" for name, share in kept.items()),
    )
    middle = len(results["lengths"]) // 2
    single = {name: [growth(results, "single", "forward", name, middle)] for name in recurrent}
    yield Verdict(
        "One sequence at a time, a token takes a recurrent layer as long in long sequences as in shorter ones.",
        all(1 / SAME <= ratio <= SAME for (ratio,) in single.values()),
        f"at {longest:,} tokens instead of {results['lengths'][middle]:,}, forward: {_listed(single)}",
    )
    for run, words in PASSES.items():
        yield from _second_thread(results, run, words)


def _second_thread(results: Results, run: str, words: str) -> Iterator[Block]:
    if results["cores"] < 2:
        yield f"This process has one core, so a second thread can gain nothing here ({words})."
        return
    recurrent, parallel = of_kind(results, "recurrent"), of_kind(results, "parallel")
    gains = {name: speed_ups(results, run, name) for name in (*recurrent, *parallel, "feed-forward")}
    yield Verdict(
        f"A second thread shortens self-attention and convolution of one long sequence more than recurrence ({words}).",
        min(gain for name in parallel for gain in gains[name])
        > max(GAIN, *(gain for name in recurrent for gain in gains[name])),
        f"at {results['lengths'][-1]:,} tokens, measured twice: {_listed(gains)} (more than {GAIN:g} × counts as a "
        "speed-up). Recurrence may gain a little too: half of an LSTM's multiplications are those of its inputs, which "
        "wait for nothing",
    )


def _listed(ratios: Mapping[str, Sequence[float]]) -> str:
    def told(ones: Sequence[float]) -> str:
        return f"{ones[0]:.2f}" if len(ones) == 1 else f"{min(ones):.2f} to {max(ones):.2f}"

    return ", ".join(f"{name} {told(ones)} ×" for name, ones in ratios.items())


def _times_table(results: Results) -> Table:
    lengths = results["lengths"]
    chosen = sorted({0, len(lengths) // 2, len(lengths) - 1})

    def cell(times: Results, place: int) -> str:
        one, two = times["one"][place], times["two"][place]
        return f"{1e6 * one / results['tokens']:.2f} ({one / two:.2f} ×)"

    rows = [
        [name, FAMILIES[family], *(cell(times, place) for place in chosen)]
        for family, runs in results["seconds"].items()
        for name, times in runs["training"].items()
    ]
    return Table(
        ["layer", "read", *(f"n = {lengths[place]:,}" for place in chosen)],
        rows,
        "Microseconds per token, forward and backward, on one thread; in brackets the speed-up by a second thread. "
        f"The fastest of {results['repeats']} measurements, in which all layers take turns.",
    )


def _arithmetic_table(results: Results) -> Table:
    lengths = results["lengths"]
    rows = [
        [
            name,
            f"{one['products'][0]:,} … {one['products'][-1]:,}",
            f"{one['waits'][0]:,} … {one['waits'][-1]:,}",
            "–" if one["path"][0] is None else f"{one['path'][0]:,} … {one['path'][-1]:,}",
        ]
        for name, one in results["arithmetic"].items()
    ]
    return Table(
        ["layer", "multiplications per token", "sequential operations", "maximum path length"],
        rows,
        f"Arithmetic, not measured: from n = {lengths[0]} to n = {lengths[-1]:,}. Paths from the first token to the "
        "last are counted in layers, or in steps of a recurrence. A QRNN's n steps multiply single numbers; its "
        "matrices are those of a convolution.",
    )


def draw(results: Results) -> list[Picture]:
    figure, axes = canvas(2, 2, width=10, height=6.6)
    lengths, tokens = results["lengths"], results["tokens"]
    for row, family in enumerate(FAMILIES):
        left, right = axes[2 * row : 2 * row + 2]
        for name, times in results["seconds"][family]["training"].items():
            style = ":" if results["kinds"][name] == "control" else "-"
            left.loglog(lengths, [1e6 * one / tokens for one in times["one"]], f"o{style}", ms=3, label=name)
            gains = [one / two for one, two in zip(times["one"], times["two"], strict=True)]
            right.semilogx(lengths, gains, f"o{style}", ms=3, label=name)
        right.axhline(1, color="grey", linewidth=0.8)
        left.set(title=f"one thread, {FAMILIES[family]}", ylabel="µs per token", xlabel="n")
        right.set(title=f"second thread, {FAMILIES[family]}", ylabel="speed-up", xlabel="n")
        for axis in (left, right):
            axis.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize="small")
            axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes[0].legend(fontsize="x-small")
    caption = "Forward and backward pass of one layer: time per token on one thread, and what a second thread gains."
    return [Picture("sequential", caption, figure)]


EXPERIMENT = Experiment(
    name="sequential",
    claim="Recurrence cannot be parallelised along the sequence: n operations wait for each other. Convolution and "
    "self-attention compute all tokens at once.",
    measure=measure,
    tell=tell,
    draw=draw,
)
