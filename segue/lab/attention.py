"""Attention weights of a trained model: maps over memory and segment, means by distance, and the four score terms.

Letters: H heads, T queries, M states in memory, S = M + T keys.
"""

from typing import Any

import torch
from torch import Tensor

from segue.config import Reach, Reading, XLConfig
from segue.infer.evaluate import segments
from segue.infer.trace import TERMS, recording, recording_terms
from segue.lab.drawing import HEAT, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import mean
from segue.lab.trained import budget, recipe_for, trained
from segue.lab.tuning import tuned
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL

AVERAGED_SEGMENTS = {True: 10, False: 40}
"""The number of segments that averages are over, quick or not."""

UNTRAINED_MODELS = {True: 4, False: 8}
"""The number of untrained models for comparison, quick or not."""

MARGIN = 2
"""A figure of the trained model counts as shown if it is more than so many times the highest untrained one.

Untrained attention is nearly uniform: its figures differ by about 1 % between seeds, so none is twice another.
"""

COMPARED = ("strongest in memory", "heads apart", "terms apart")
"""The figures that the verdicts compare."""

SMALLEST_DISTANCE = 0.1
"""Tokens: mean distances below this are raised to it before a ratio is taken."""


def measure(setting: Setting) -> Results:
    best = tuned(setting, recipe_for(setting, seed=setting.seed), "xl")
    bundle = trained(setting, best.recipe, f"xl, seed {setting.seed}")
    assert isinstance(bundle.model, TransformerXL)
    return compared(setting, bundle.model)


def compared(setting: Setting, model: TransformerXL) -> Results:
    """Attention statistics of a model, and the figures of untrained models of its shape on the same text."""
    untrained = []
    for seed in range(setting.seed, setting.seed + UNTRAINED_MODELS[setting.quick]):
        fresh = _attended(setting, untrained_model(model.config, seed), f"attention untrained, seed {seed}")
        untrained.append({"seed": seed, **figures(fresh)})
    return {**_attended(setting, model, "attention"), "untrained": untrained}


def untrained_model(config: XLConfig, seed: int) -> TransformerXL:
    torch.manual_seed(seed)
    return TransformerXL(config).eval()


@torch.no_grad()
def _attended(setting: Setting, model: TransformerXL, label: str) -> Results:
    length, count = budget(setting).segment, AVERAGED_SEGMENTS[setting.quick]
    reading = Reading(segment=length, reach=Reach(memory=length))  # as in training
    sums, last = _Sums(length), {}
    memory: Memory = model.start(reach=reading.reach)
    warmup = 1
    for number, segment in enumerate(
        segments(setting.stream("test"), reading, (warmup + count) * length, documents=False)
    ):
        with recording(model) as weights, recording_terms(model) as terms:
            _, memory = model(segment.tokens, memory)
        if number >= warmup:
            sums.add(weights, terms)
            last = {name: lanes[0] for name, lanes in weights.items()}
        setting.report(label, number + 1, warmup + count)
    return {
        "segment": length,
        "held": length,
        "segments": count,
        "maps": [_rounded(last[name], 3) for name in sums.names],
        "by distance": {
            term: _rounded(torch.cat(rows) / count, 5) for term, rows in sums.by_distance().items()
        },
        "spreads": {term: _rounded(torch.cat(rows) / count, 3) for term, rows in sums.spreads().items()},
        "in memory": _rounded(torch.cat(sums.in_memory()) / count, 4),
        "strongest in memory": _rounded(torch.cat(sums.strongest()) / count, 5),
        "heads": model.config.heads,
    }


class _Sums:
    """Sums over segments, for each layer and score term."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._sums: dict[tuple[str, str, str], Tensor] = {}
        self.names: list[str] = []

    def add(self, layers: dict[str, Tensor], terms: dict[str, dict[str, Tensor]]) -> None:
        self.names = sorted(layers, key=lambda name: int(name.split(".")[1]))
        for name, weights in layers.items():
            self._add("distance", name, "all", by_distance(weights[0], self._memory))
            on_memory = weights[0, :, :, : self._memory]
            self._add("memory", name, "all", on_memory.sum(dim=-1).mean(dim=-1))
            self._add("strongest", name, "all", on_memory.amax(dim=-1).mean(dim=-1))
            for term, scores in terms[name].items():
                self._add("distance", name, term, by_distance(scores[0].softmax(dim=-1), self._memory))
                self._add("spread", name, term, _deviation(scores[0]))

    def _add(self, what: str, name: str, term: str, value: Tensor) -> None:
        key = (what, name, term)
        self._sums[key] = self._sums[key] + value if key in self._sums else value

    def by_distance(self) -> dict[str, list[Tensor]]:
        return {term: self._rows("distance", term) for term in ("all", *TERMS)}

    def spreads(self) -> dict[str, list[Tensor]]:
        return {term: self._rows("spread", term) for term in TERMS}

    def in_memory(self) -> list[Tensor]:
        return self._rows("memory", "all")

    def strongest(self) -> list[Tensor]:
        """The largest weight that a query gives to one state in memory."""
        return self._rows("strongest", "all")

    def _rows(self, what: str, term: str) -> list[Tensor]:
        return [self._sums[what, name, term] for name in self.names]


def by_distance(weights: Tensor, memory: int) -> Tensor:
    """(H, M + 1) The mean attention weight by distance, for distances that every query reaches."""
    queries = weights.size(1)
    rows = [weights[:, place, place : memory + place + 1].flip(-1) for place in range(queries)]
    return torch.stack(rows).mean(dim=0)


def _deviation(scores: Tensor) -> Tensor:
    """(H,) The standard deviation of a query's scores over its keys. (A constant score changes no weight.)"""
    visible = scores.isfinite()
    counts = visible.sum(dim=-1)
    finite = scores.masked_fill(~visible, 0)
    mean = finite.sum(dim=-1) / counts
    squares = ((finite - mean[..., None]) ** 2).masked_fill(~visible, 0).sum(dim=-1) / counts
    return squares.sqrt().mean(dim=-1)


def _rounded(tensor: Tensor, digits: int) -> Any:
    if tensor.dim() > 1:
        return [_rounded(row, digits) for row in tensor]
    return [round(value, digits) for value in tensor.tolist()]


def mean_distance(row: list[float]) -> float:
    """The mean attention distance of a head, from its weights by distance."""
    return sum(place * weight for place, weight in enumerate(row)) / sum(row)


def name_of(number: int, heads: int) -> str:
    return f"layer {number // heads + 1}, head {number % heads + 1}"


def figures(attended: Results) -> Results:
    """The figures by which trained and untrained weights are compared."""
    distances = [mean_distance(row) for row in attended["by distance"]["all"]]
    by_term = _distances_by_term(attended)
    position = max(by_term["content and distance"], by_term["distance bias"])
    return {
        "in memory": mean(attended["in memory"]),
        "strongest in memory": mean(attended["strongest in memory"]),
        "heads apart": max(distances) / max(min(distances), SMALLEST_DISTANCE),
        "terms apart": by_term["content"] / max(position, SMALLEST_DISTANCE),
    }


def _distances_by_term(attended: Results) -> dict[str, float]:
    """The mean attention distance if each score term alone made the weights."""
    return {term: mean([mean_distance(row) for row in attended["by distance"][term]]) for term in TERMS}


def tell(results: Results) -> list[Block]:
    heads, ours = results["heads"], figures(results)
    distances = [mean_distance(row) for row in results["by distance"]["all"]]
    nearest, farthest = distances.index(min(distances)), distances.index(max(distances))
    by_term = _distances_by_term(results)
    alone = ", ".join(f"({letter}) {by_term[term]:.1f}" for term, letter in zip(TERMS, "abcd", strict=True))
    return [
        f"A trained Transformer-XL read test text as in training: with a memory of {results['held']} states, in "
        f"segments of {results['segment']}. The maps show one segment: a row per query, a column per key, with the "
        f"memory to the left of the seam. The averages are over {results['segments']} segments; averages by distance "
        f"end at {results['held']}, the farthest that every query reaches.",
        f"Untrained attention is nearly uniform, so {_range(results, 'in memory', '.0%')} of its weight is on memory, "
        f"where most keys are; of the trained model's, {ours['in memory']:.0%}. The total weight on memory therefore "
        "says nothing; a large weight on a single state in memory does. Each figure below is compared with "
        f"those of {len(results['untrained'])} untrained models of the same shape on the same "
        f"text, and counts as shown if it is more than {MARGIN} times the highest of them; these "
        f"differ from each other by at most {_apart(results):.1%}, so chance does not explain it.",
        Verdict(
            "Attention reaches into memory, and selects single states there.",
            _beyond(results, "strongest in memory"),
            "the largest weight of a query on one state in memory is "
            f"{ours['strongest in memory']:.1%}, mean of all heads; with untrained weights "
            f"{_range(results, 'strongest in memory', '.2%')}",
        ),
        Verdict(
            "Heads differ in their attention distance.",
            _beyond(results, "heads apart"),
            f"the mean distance of {name_of(nearest, heads)} is {distances[nearest]:.1f} tokens, that of "
            f"{name_of(farthest, heads)} {distances[farthest]:.1f}, {ours['heads apart']:.1f} times as far; with "
            f"untrained weights {_range(results, 'heads apart', '.3f')} times",
        ),
        "An attention score is the sum of four terms: (a) query content with key content, (b) query content with "
        "distance, (c) a bias on key content, (d) a bias on distance. A term that is equal for all keys has no "
        "effect on the weights; the table shows how much each term differs between the keys of one query. The "
        "pictures by distance also show the weights that each term alone would give.",
        Verdict(
            "The position terms attend to near tokens; the content term alone does not.",
            _beyond(results, "terms apart"),
            f"mean distance of each term alone, in tokens: {alone}; (a) is {ours['terms apart']:.2f} times as far "
            f"as the farther of (b) and (d), with untrained weights {_range(results, 'terms apart', '.3f')} times; "
            f"equal weights at all distances would give {results['held'] / 2:g} tokens",
        ),
        *_tables(results, distances, by_term),
        "For an interactive page: segue attention RUN --text “…”.",
    ]


def _beyond(results: Results, what: str) -> bool:
    """Whether a figure is more than `MARGIN` times the highest one of untrained weights."""
    highest: float = max(one[what] for one in results["untrained"])
    return bool(figures(results)[what] > MARGIN * highest)


def _apart(results: Results) -> float:
    """The largest relative difference between untrained models, over all figures."""
    columns: list[list[float]] = [[one[what] for one in results["untrained"]] for what in COMPARED]
    return max(max(column) / min(column) - 1 for column in columns)


def _range(results: Results, what: str, form: str) -> str:
    values = [one[what] for one in results["untrained"]]
    low, high = (format(value, form) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _tables(results: Results, distances: list[float], by_term: dict[str, float]) -> list[Block]:
    spreads, heads = results["spreads"], results["heads"]
    return [
        Table(
            ["term", "standard deviation", "mean distance, alone"],
            [[TERMS[term], f"{mean(spreads[term]):.2f}", f"{by_term[term]:.1f} tokens"] for term in TERMS],
            "The standard deviation of a term's scores over the keys of a query, mean of all heads; and the mean "
            "attention distance of that term alone.",
        ),
        Table(
            ["head", "mean distance", "on memory", "on one state of memory"],
            [
                [
                    name_of(number, heads),
                    f"{distances[number]:.1f} tokens",
                    f"{share:.0%}",
                    f"{strongest:.1%}",
                ]
                for number, (share, strongest) in enumerate(
                    zip(results["in memory"], results["strongest in memory"], strict=True)
                )
            ],
            "Mean attention distance, the total weight on memory, and the largest weight on one state of memory.",
        ),
    ]


def draw(results: Results) -> list[Picture]:
    return [_maps(results), _distances(results)]


def _maps(results: Results) -> Picture:
    layers, heads, segment = len(results["maps"]), results["heads"], results["segment"]
    figure, axes = canvas(layers, heads, width=2.6 * heads + 1, height=1.6 * layers + 0.4)
    for number, axis in enumerate(axes):
        weights = torch.tensor(results["maps"][number // heads][number % heads])
        axis.imshow(weights.sqrt().tolist(), cmap=HEAT, interpolation="nearest", aspect="auto")
        axis.axvline(segment - 0.5, color="#ffffff", linewidth=1)
        axis.set_title(name_of(number, heads), fontsize="small")
        axis.grid(visible=False)
        axis.set(xticks=[], yticks=[])
    caption = (
        f"Attention of one segment, {segment} × {2 * segment}, by layer and head (square roots of weights). "
    )
    return Picture("attention-maps", caption + "White line: the seam between memory and segment.", figure)


def _distances(results: Results) -> Picture:
    by_term, heads = results["by distance"], results["heads"]
    names = {
        "all": "sum of all terms",
        **{term: f"({letter}) alone" for term, letter in zip(TERMS, "abcd", strict=True)},
    }
    figure, axes = canvas(1, len(names), width=13, height=0.28 * len(by_term["all"]) + 1.4)
    for number, (axis, (term, name)) in enumerate(zip(axes, names.items(), strict=True)):
        rows = torch.tensor(by_term[term]).clamp(min=1e-5).log10()
        image = axis.imshow(rows.tolist(), cmap=HEAT, interpolation="nearest", aspect="auto", vmin=-4, vmax=0)
        axis.set(title=name, xlabel="distance in tokens")
        axis.grid(visible=False)
        labels = [name_of(place, heads) for place in range(len(by_term["all"]))] if number == 0 else []
        axis.set_yticks(range(len(labels)), labels)
    figure.colorbar(image, ax=axes[-1], label="log10 of the weight")
    caption = "Mean attention weight by distance, a row for each head (colours: log10 of the weight)."
    return Picture("attention-distance", caption, figure)


EXPERIMENT = Experiment(
    name="attention",
    claim="Heads of a trained Transformer-XL attend to near tokens, to distant ones, and to memory.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=3,
)
