"""The section of `words`: verdicts, tables and pictures, from the results alone."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Picture, Results, Table, Verdict
from segue.lab.published import published, source
from segue.lab.statistics import always_lower, half_range, mean, plus_minus, seed_count
from segue.lab.word_models import CUTOFFS, DIVISOR, MODES, SIDES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 0.01
"""Share of a perplexity: a smaller difference does not count."""

CACHED = ("LSTM", "Transformer-XL")
"""The models whose cache has a verdict."""


def figures(results: Results, name: str, mode: str = "static", split: str = "test") -> list[float]:
    """The perplexities of all seeds."""
    return [float(seed[MODES.index(mode)]) for seed in results["sides"][name][split]]


def row_name(name: str, mode: str) -> str:
    return name if mode == "static" else f"{name} + {mode}"


def lower(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the left perplexity is lower with every seed, and on average by more than the margin."""
    return always_lower(left, right) and mean(left) < (1 - MARGIN) * mean(right)


def tell(results: Results) -> list[Block]:
    budget, limits = results["budget"], results["limits"]
    return [
        f"{results['source']} as words, {results['vocab']:,} of them. Every model is trained on "
        f"{budget['lanes'] * budget['segment'] * budget['steps']:,} words of the {results['training words']:,} in the "
        f"training split, in segments of {budget['segment']}, and has the same adaptive input and adaptive softmax: "
        f"clusters of rarer words begin at {' and '.join(f'{edge:,}' for edge in CUTOFFS)}, with vectors {DIVISOR} "
        "times narrower each. All tried the same settings of optimizer and cache on validation words. "
        "At this scale the figures tell which model learns faster from little text.",
        *_verdicts(results),
        _table(results, limits),
        *_sweep_blocks(results),
        _beside_published(results),
    ]


def _verdicts(results: Results) -> Iterator[Verdict]:
    for other, claim in (
        ("LSTM", "A Transformer-XL predicts words better than an LSTM of the same size."),
        ("Adaptive input", "A Transformer-XL predicts words better than a Transformer without memory."),
    ):
        yield _compared(claim, figures(results, "Transformer-XL"), figures(results, other))
    for name in CACHED:
        yield _cache_verdict(results, name)
    yield from _memory_verdicts(results)


def _compared(claim: str, left: Sequence[float], right: Sequence[float], note: str = "") -> Verdict:
    return Verdict(
        claim,
        lower(left, right),
        f"perplexity {plus_minus(left, 1)} against {plus_minus(right, 1)}{note}; {seed_count(left)}",
        size=f"{100 * (mean(left) / mean(right) - 1):+.1f} % perplexity",
        sure=seed_count(left),
    )


def _cache_verdict(results: Results, name: str) -> Verdict:
    """Counting recent words helps any weights, so a cache that looks at states must beat one that does not."""
    static, recent, neural = (figures(results, name, mode) for mode in MODES)
    fresh = results["sides"][name]["untrained"]
    saved, without = 1 - mean(neural) / mean(recent), 1 - fresh[2] / fresh[1]
    told = (
        "; so it would show in those too: their states tell the last words apart" if without > MARGIN else ""
    )
    return Verdict(
        f"A neural cache makes {'an LSTM' if name == 'LSTM' else name} better, and by more than the frequencies of "
        "recent words do.",
        lower(neural, static) and lower(neural, recent),
        f"perplexity {plus_minus(neural, 1)} against {plus_minus(static, 1)} without a cache and "
        f"{plus_minus(recent, 1)} with recent words alone; states save {100 * saved:.1f} % of the latter, and "
        f"{100 * without:.1f} % in untrained weights{told}; {seed_count(static)}",
        size=f"{100 * (mean(neural) / mean(static) - 1):+.1f} % perplexity",
        sure=seed_count(static),
    )


def by_memory(results: Results, column: str) -> list[list[float]]:
    """For each memory length, the perplexities of all seeds."""
    return [list(values) for values in zip(*(seed[column] for seed in results["sweep"]), strict=True)]


def _memory_verdicts(results: Results) -> Iterator[Verdict]:
    memories, trained = results["memories"], results["budget"]["segment"]
    place = memories.index(trained)
    plain = by_memory(results, "test")
    yield _compared(
        "Transformer-XL predicts words better with the memory of training than with none.",
        plain[place],
        plain[memories.index(0)],
    )
    for suffix, words in (("", "without a clamp"), (" clamped", "with a clamp")):
        columns, valid = by_memory(results, f"test{suffix}"), by_memory(results, f"valid{suffix}")
        best = min(range(place + 1, len(memories)), key=lambda number: mean(valid[number]))
        yield _compared(
            f"Transformer-XL predicts words better with a longer memory than in training, {words}.",
            columns[best],
            plain[place],
            f" ({memories[best]:,} and {trained} states; validation words chose the longer one)",
        )


def _table(results: Results, limits: dict[str, int]) -> Table:
    rows = [
        [
            row_name(name, mode),
            *(plus_minus(figures(results, name, mode, split), 1) for split in limits),
            f"{side['untrained'][number]:,.0f}",
            f"{side['parameters']:,}",
            f"{side['optimizer']}, {side['learning_rate']:g}",
            ", ".join(f"{key} {value:g}" for key, value in side["caches"].get(mode, {}).items()) or "–",
        ]
        for name, side in results["sides"].items()
        for number, mode in enumerate(MODES)
    ]
    return Table(
        ["model", "validation", "test", "untrained weights", "parameters", "optimizer", "cache"],
        rows,
        f"Perplexity of {limits['valid']:,} and {limits['test']:,} words; untrained weights: of "
        f"{results['tuned_on']:,} test words. Mean ± half the range of seeds. "
        + " ".join(f"{name}: {what}." for name, what in SIDES.items()),
    )


def _sweep_blocks(results: Results) -> Iterator[Block]:
    columns = {name: by_memory(results, name) for name in ("valid", "test", "valid clamped", "test clamped")}
    clamps = by_memory(results, "clamps")
    rows = [
        [
            f"{memory:,}",
            *(plus_minus(column[number], 1) for column in columns.values()),
            "/".join(f"{int(clamp)}" for clamp in sorted(set(clamps[number]))),
        ]
        for number, memory in enumerate(results["memories"])
    ]
    yield Table(
        ["memory", "validation", "test", "validation, clamp", "test, clamp", "clamp"],
        rows,
        f"Transformer-XL by memory length at evaluation (in training {results['budget']['segment']}): perplexity of "
        f"{results['swept']:,} words of each split. Distances beyond a clamp count as that one; it is chosen on "
        "validation words for each seed and memory.",
    )


def small_figures(results: Results) -> dict[str, dict[str, float]]:
    """Our mean perplexities by the names of rows."""
    return {
        row_name(name, mode): {
            split: mean(figures(results, name, mode, split)) for split in ("valid", "test")
        }
        for name in results["sides"]
        for mode in MODES
    }


def _beside_published(results: Results) -> Table:
    (table,) = (one for one in published("results") if one["data"] == "wikitext-103")
    ours = small_figures(results)
    rows = [
        [
            row["model"],
            f"{row['score']:.1f}",
            f"{row['valid']:.1f}" if "valid" in row else "–",
            row.get("parameters", "–"),
            *(f"{ours[row['words']][split]:.1f}" for split in ("test", "valid")),
        ]
        for row in table["rows"]
        if row.get("words") in ours
    ]
    return Table(
        [
            "model",
            "published test",
            "published validation",
            "published parameters",
            "test here",
            "validation here",
        ],
        rows,
        f"Published: {source(table['source'])}, on WikiText-103, with its own vocabulary and far more training words; "
        f"figures of WikiText-2 are not among those that are known here. Ours: {results['source']}, models of "
        f"{results['sides']['Transformer-XL']['parameters'] / 1e6:.1f}M parameters. Compare the order of rows, not the "
        "figures.",
    )


def draw(results: Results) -> list[Picture]:
    figure, (left, right) = canvas(1, 2, width=10, height=3.8)
    names = list(results["sides"])
    for number, mode in enumerate(MODES):
        values = [figures(results, name, mode) for name in names]
        left.errorbar(
            [place + 0.15 * (number - 1) for place in range(len(names))],
            [mean(one) for one in values],
            [half_range(one) for one in values],
            fmt="o",
            capsize=3,
            label="no cache" if mode == "static" else mode,
        )
    left.set(
        title="test perplexity", xticks=range(len(names)), xticklabels=names, xlim=(-0.5, len(names) - 0.5)
    )
    left.legend(fontsize="small")
    _draw_sweep(right, results)
    caption = "Test perplexity by model, and of Transformer-XL by memory length at evaluation (dotted: in training)."
    return [Picture("words", caption, figure)]


def _draw_sweep(axis: "Axes", results: Results) -> None:
    memories = results["memories"]
    places = range(len(memories))
    for column, label in (("test", "no clamp"), ("test clamped", "clamp")):
        values = by_memory(results, column)
        axis.errorbar(
            places,
            [mean(one) for one in values],
            [half_range(one) for one in values],
            fmt="o-",
            capsize=3,
            label=label,
        )
    axis.axvline(memories.index(results["budget"]["segment"]), color="grey", linestyle=":")
    axis.set(title="Transformer-XL", xlabel="memory", ylabel="perplexity", xticks=places)
    axis.set_xticklabels([f"{memory:,}" for memory in memories])
    axis.legend(fontsize="small")
