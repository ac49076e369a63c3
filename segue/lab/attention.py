"""Where a trained model looks: maps over memory and segment, averages by distance, and the four terms of each score.

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
from segue.lab.spread import mean
from segue.lab.trained import budget, recipe_for, trained
from segue.lab.tuning import tuned
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL

AVERAGED = {True: 10, False: 40}
"""Segments that averages are taken over, quick or not."""

UNTRAINED = {True: 4, False: 8}
"""Models with untrained weights beside the trained one, quick or not."""

MARGIN = 2
"""A figure of the trained model counts if it is so many times the highest of the untrained ones.

Untrained weights look everywhere alike: their figures lie within about a hundredth of each other, whatever the seed, so
that none of them comes near twice another.
"""

COMPARED = ("strongest in memory", "heads apart", "terms apart")
"""The figures that verdicts rest on."""

NEAREST = 0.1
"""Tokens: looking nearer than this counts as looking this far where a ratio is taken."""


def measure(setting: Setting) -> Results:
    best = tuned(setting, recipe_for(setting, seed=setting.seed), "xl")
    bundle = trained(setting, best.recipe, f"xl, seed {setting.seed}")
    assert isinstance(bundle.model, TransformerXL)
    return compared(setting, bundle.model)


def compared(setting: Setting, model: TransformerXL) -> Results:
    """Where a model looks, and the figures of untrained weights of its shape that read the same text."""
    untrained = []
    for seed in range(setting.seed, setting.seed + UNTRAINED[setting.quick]):
        fresh = _looked(setting, untrained_model(model.config, seed), f"looking untrained, seed {seed}")
        untrained.append({"seed": seed, **figures(fresh)})
    return {**_looked(setting, model, "looking"), "untrained": untrained}


def untrained_model(config: XLConfig, seed: int) -> TransformerXL:
    torch.manual_seed(seed)
    return TransformerXL(config).eval()


@torch.no_grad()
def _looked(setting: Setting, model: TransformerXL, told: str) -> Results:
    segment, count = budget(setting).segment, AVERAGED[setting.quick]
    held = 4 * segment
    reading = Reading(segment=segment, reach=Reach(memory=held))
    sums, last = _Sums(held), {}
    memory: Memory = model.start(reach=reading.reach)
    warm = held // segment
    for number, some in enumerate(
        segments(setting.stream("test"), reading, (warm + count) * segment, documents=False)
    ):
        with recording(model) as seen, recording_terms(model) as terms:
            _, memory = model(some.tokens, memory)
        if number >= warm:
            sums.add(seen, terms)
            last = {name: weights[0] for name, weights in seen.items()}
        setting.report(told, number + 1, warm + count)
    return {
        "segment": segment,
        "held": held,
        "segments": count,
        "maps": [_rounded(last[name][:, :, held - segment :], 3) for name in sums.names],
        "by distance": {
            term: _rounded(torch.cat(rows) / count, 5) for term, rows in sums.by_distance().items()
        },
        "spreads": {term: _rounded(torch.cat(rows) / count, 3) for term, rows in sums.spreads().items()},
        "in memory": _rounded(torch.cat(sums.in_memory()) / count, 4),
        "strongest in memory": _rounded(torch.cat(sums.strongest()) / count, 5),
        "heads": model.config.heads,
    }


class _Sums:
    """Sums over segments of what is averaged, for each attention and term."""

    def __init__(self, held: int) -> None:
        self._held = held
        self._found: dict[tuple[str, str, str], Tensor] = {}
        self.names: list[str] = []

    def add(self, seen: dict[str, Tensor], terms: dict[str, dict[str, Tensor]]) -> None:
        self.names = sorted(seen, key=lambda name: int(name.split(".")[1]))
        for name, weights in seen.items():
            self._add("distance", name, "all", by_distance(weights[0], self._held))
            remembered = weights[0, :, :, : self._held]
            self._add("memory", name, "all", remembered.sum(dim=-1).mean(dim=-1))
            self._add("strongest", name, "all", remembered.amax(dim=-1).mean(dim=-1))
            for term, scores in terms[name].items():
                self._add("distance", name, term, by_distance(scores[0].softmax(dim=-1), self._held))
                self._add("spread", name, term, _spread(scores[0]))

    def _add(self, what: str, name: str, term: str, value: Tensor) -> None:
        key = (what, name, term)
        self._found[key] = self._found[key] + value if key in self._found else value

    def by_distance(self) -> dict[str, list[Tensor]]:
        return {term: self._rows("distance", term) for term in ("all", *TERMS)}

    def spreads(self) -> dict[str, list[Tensor]]:
        return {term: self._rows("spread", term) for term in TERMS}

    def in_memory(self) -> list[Tensor]:
        return self._rows("memory", "all")

    def strongest(self) -> list[Tensor]:
        """The weight of the one state in memory that a query looks at most."""
        return self._rows("strongest", "all")

    def _rows(self, what: str, term: str) -> list[Tensor]:
        return [self._found[what, name, term] for name in self.names]


def by_distance(weights: Tensor, held: int) -> Tensor:
    """(H, M + 1) The mean weight of keys by how far back they lie, up to what every query can see."""
    queries = weights.size(1)
    rows = [weights[:, place, place : held + place + 1].flip(-1) for place in range(queries)]
    return torch.stack(rows).mean(dim=0)


def _spread(scores: Tensor) -> Tensor:
    """(H,) How much the scores of one query's keys differ: a term that says the same of all keys decides nothing."""
    seen = scores.isfinite()
    counts = seen.sum(dim=-1)
    known = scores.masked_fill(~seen, 0)
    mean = known.sum(dim=-1) / counts
    squares = ((known - mean[..., None]) ** 2).masked_fill(~seen, 0).sum(dim=-1) / counts
    return squares.sqrt().mean(dim=-1)


def _rounded(tensor: Tensor, digits: int) -> Any:
    if tensor.dim() > 1:
        return [_rounded(row, digits) for row in tensor]
    return [round(value, digits) for value in tensor.tolist()]


def mean_distance(row: list[float]) -> float:
    """How far back a head looks on average."""
    return sum(place * weight for place, weight in enumerate(row)) / sum(row)


def name_of(number: int, heads: int) -> str:
    return f"layer {number // heads + 1}, head {number % heads + 1}"


def figures(looked: Results) -> Results:
    """What trained and untrained weights are compared by."""
    far = [mean_distance(row) for row in looked["by distance"]["all"]]
    back = {term: mean([mean_distance(row) for row in looked["by distance"][term]]) for term in TERMS}
    position = max(back["content and distance"], back["distance bias"])
    return {
        "in memory": mean(looked["in memory"]),
        "strongest in memory": mean(looked["strongest in memory"]),
        "heads apart": max(far) / max(min(far), NEAREST),
        "terms apart": back["content"] / max(position, NEAREST),
    }


def tell(results: Results) -> list[Block]:
    heads, held, ours = results["heads"], results["held"], figures(results)
    far = [mean_distance(row) for row in results["by distance"]["all"]]
    nearest, farthest = far.index(min(far)), far.index(max(far))
    inside = results["in memory"]
    back = {term: mean([mean_distance(row) for row in results["by distance"][term]]) for term in TERMS}
    alone = ", ".join(f"({letter}) {back[term]:.1f}" for term, letter in zip(TERMS, "abcd", strict=True))
    return [
        f"A trained Transformer-XL read test text with a memory of {held} states, in segments of "
        f"{results['segment']}. The maps show one segment: a row for each token that looks, a column for each "
        f"that it looks at, the nearest {results['segment']} states of memory on the left of the seam. The "
        f"averages are over {results['segments']} segments.",
        f"Untrained weights look everywhere alike, so that {_range(results, 'in memory', '.0%')} of their look lies in "
        f"memory, where most keys are; of the trained model's, {ours['in memory']:.0%}. How much lies there "
        "therefore says nothing; that single states in memory are looked at does. Each figure below is compared with "
        f"those of {len(results['untrained'])} models of the same shape with untrained weights that read the same "
        f"text, and counts as shown if it is more than {MARGIN} times the highest of them; among themselves these "
        f"differ by at most {_apart(results):.1%}, so that chance does not reach it.",
        Verdict(
            "Attention crosses the seam into memory, and chooses there.",
            _beyond(results, "strongest in memory"),
            "the one state in memory that a token looks at most gets "
            f"{ours['strongest in memory']:.1%} of its look, mean of all heads; with untrained weights "
            f"{_range(results, 'strongest in memory', '.2%')}",
        ),
        Verdict(
            "Heads differ in how far they look.",
            _beyond(results, "heads apart"),
            f"on average {name_of(nearest, heads)} looks {far[nearest]:.1f} tokens back, and "
            f"{name_of(farthest, heads)} {far[farthest]:.1f}, {ours['heads apart']:.1f} times as far; with untrained "
            f"weights {_range(results, 'heads apart', '.3f')} times",
        ),
        "A score is the sum of four terms: (a) what the query and the key hold, (b) what the query holds and "
        "how far the key lies, (c) what the key holds whatever the query, (d) how far the key lies whatever "
        "the query. A term that says the same of every key decides nothing; the table shows how much each "
        "differs between the keys of one query. The pictures by distance also show where each term would look "
        "if it alone decided.",
        Verdict(
            "The position terms look nearby, the content term afar.",
            _beyond(results, "terms apart"),
            f"alone they would look back, in tokens on average: {alone}; (a) {ours['terms apart']:.2f} times as far "
            f"as the farther of (b) and (d), with untrained weights {_range(results, 'terms apart', '.3f')} times",
        ),
        *_tables(results, far, inside, back),
        "For a page to point at: segue attention RUN --text “…”.",
    ]


def _beyond(results: Results, what: str) -> bool:
    """Whether a figure lies farther above those of untrained weights than chance could take it."""
    highest: float = max(one[what] for one in results["untrained"])
    return bool(figures(results)[what] > MARGIN * highest)


def _apart(results: Results) -> float:
    """How much the untrained ones differ in the figure in which they differ most."""
    columns: list[list[float]] = [[one[what] for one in results["untrained"]] for what in COMPARED]
    return max(max(column) / min(column) - 1 for column in columns)


def _range(results: Results, what: str, form: str) -> str:
    values = [one[what] for one in results["untrained"]]
    low, high = (format(value, form) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _tables(results: Results, far: list[float], inside: list[float], back: Results) -> list[Block]:
    spreads, heads = results["spreads"], results["heads"]
    return [
        Table(
            ["term", "spread of scores", "looks back, alone"],
            [[TERMS[term], f"{mean(spreads[term]):.2f}", f"{back[term]:.1f} tokens"] for term in TERMS],
            "The standard deviation of a term's scores over the keys of a query, mean of all heads; and the "
            "mean distance.",
        ),
        Table(
            ["head", "looks back", "in memory", "at one state there"],
            [
                [name_of(number, heads), f"{far[number]:.1f} tokens", f"{share:.0%}", f"{strongest:.1%}"]
                for number, (share, strongest) in enumerate(
                    zip(inside, results["strongest in memory"], strict=True)
                )
            ],
            "Mean distance, the share of the look that lies in memory, and that of the state there that is looked "
            "at most.",
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
        f"One segment's attention, {segment} × {2 * segment}, for every layer and head (roots of weights). "
    )
    return Picture("attention-maps", caption + "White: the seam between memory and segment.", figure)


def _distances(results: Results) -> Picture:
    found, heads = results["by distance"], results["heads"]
    names = {
        "all": "all together",
        **{term: f"({letter}) alone" for term, letter in zip(TERMS, "abcd", strict=True)},
    }
    figure, axes = canvas(1, len(names), width=13, height=0.28 * len(found["all"]) + 1.4)
    for number, (axis, (term, name)) in enumerate(zip(axes, names.items(), strict=True)):
        rows = torch.tensor(found[term]).clamp(min=1e-5).log10()
        image = axis.imshow(rows.tolist(), cmap=HEAT, interpolation="nearest", aspect="auto", vmin=-4, vmax=0)
        axis.set(title=name, xlabel="tokens back")
        axis.grid(visible=False)
        labels = [name_of(place, heads) for place in range(len(found["all"]))] if number == 0 else []
        axis.set_yticks(range(len(labels)), labels)
    figure.colorbar(image, ax=axes[-1], label="power of ten")
    caption = "Average attention by distance, a row for each head (colours: powers of ten of the weight)."
    return Picture("attention-distance", caption, figure)


EXPERIMENT = Experiment(
    name="attention",
    claim="Heads of a trained Transformer-XL look at what is near, at things far away, and over the seam into memory.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
