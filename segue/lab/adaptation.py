"""Learning while reading: how many bits dynamic evaluation and the neural cache save, tuned on validation text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from torch import Tensor

from segue.checkpoint import Bundle
from segue.infer.adapt import Cache, Dynamic, evaluate_cached, evaluate_dynamic, mean_squares
from segue.infer.evaluate import Score, evaluate
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.kinds import trained_kind, tuned
from segue.lab.published import published, source
from segue.lab.spread import fewer_bits, half_range, mean, said, with_seeds

KINDS = ("Transformer-XL", "LSTM")
WAYS = ("static", "dynamic evaluation", "neural cache")

SIZES = {True: (1500, 4000, 6000), False: (10_000, 30_000, 30_000)}
"""If quick or not: tokens to choose settings on, to score, and to take the size of gradients from."""

How = Dynamic | Cache | None
"""The settings of a way to read; None: the weights stand still."""


def measure(setting: Setting) -> Results:
    tuned_on, scored, gather = SIZES[setting.quick]
    found: Results = {}
    for name in KINDS:
        kind = tuned(setting, name)
        seeds = [_Reader(setting, trained_kind(setting, kind, seed), gather) for seed in setting.seeds]
        hows = {
            way: _best(seeds[0], tries, tuned_on, f"{name}, {way}")
            for way, tries in _tries(setting.quick).items()
        }
        found[name] = [_scored(reader, hows, scored) for reader in seeds]
    return {"tuned_on": tuned_on, "scored": scored, "gathered": gather, "models": found}


@dataclass(frozen=True, eq=False)
class _Reader:
    """A model that reads in any of the ways."""

    setting: Setting
    bundle: Bundle
    gather: int

    @cached_property
    def squares(self) -> dict[str, Tensor]:
        return mean_squares(self.bundle.model, self.setting.stream("train"), self.bundle.reading, self.gather)

    def read(self, how: How, split: str, tokens: int) -> Score:
        model, reading, stream = self.bundle.model, self.bundle.reading, self.setting.stream(split)
        match how:
            case Dynamic():
                return evaluate_dynamic(model, stream, reading, self.squares, how, limit=tokens)
            case Cache():
                return evaluate_cached(model, stream, reading, how, limit=tokens)
            case None:
                return evaluate(model, stream, reading, limit=tokens)


def _tries(quick: bool) -> dict[str, list[How]]:
    """What is tried for each way."""
    rates, decays = ((3e-4, 1e-3), (1e-3,)) if quick else ((1e-4, 3e-4, 1e-3, 3e-3), (0.0, 1e-3))
    flat, weights = ((0.1, 0.3), (0.05,)) if quick else ((0.03, 0.1, 0.3, 1.0), (0.02, 0.05, 0.1))
    return {
        "static": [None],
        "dynamic evaluation": [
            Dynamic(learning_rate=rate, decay=decay) for rate, decay in product(rates, decays)
        ],
        "neural cache": [Cache(flatness=one, weight=weight) for one, weight in product(flat, weights)],
    }


def _best(reader: _Reader, tries: Sequence[How], tokens: int, told: str) -> How:
    """The settings that are best on validation text, with the model of the first seed."""
    if len(tries) == 1:
        return tries[0]
    reached = []
    for how in tries:
        reached.append(reader.read(how, "valid", tokens).nats)
        reader.setting.report(told, len(reached), len(tries))
    return tries[reached.index(min(reached))]


def _scored(reader: _Reader, hows: Mapping[str, How], tokens: int) -> Results:
    """Bits per byte of every way."""
    return {
        way: {"bits": reader.read(how, "test", tokens).bits_per_byte, "settings": _settings(how)}
        for way, how in hows.items()
    }


def _settings(how: How) -> Results:
    """Those that were tried."""
    return {} if how is None else how.model_dump(include={"learning_rate", "decay", "weight", "flatness"})


def bits(results: Results, name: str, way: str) -> list[float]:
    """Of each seed."""
    return [one[way]["bits"] for one in results["models"][name]]


def tell(results: Results) -> list[Block]:
    names = list(results["models"])
    theirs = published("adaptation")["rows"]
    return [
        "A text that goes on is its own best teacher: names, words and habits return. Dynamic evaluation lets the "
        "weights follow the text a little, segment by segment, after each was scored; the neural cache gives some "
        "probability to tokens that followed states like this one. Both keep to the rule that nothing is seen before "
        f"it is scored. Their settings were chosen on {results['tuned_on']:,} tokens of validation text, and "
        f"{results['scored']:,} of test text scored.",
        *(_verdict(results, name, way) for name in names for way in WAYS[1:]),
        Table(
            ["model", "way to read", "bits per byte", "saved", "settings"],
            [_line(results, name, way) for name in names for way in WAYS],
            "Mean ± half the range of seeds.",
        ),
        Table(
            ["data", "model", "with", "before", "after", "saved"],
            [_published_line(row) for row in theirs],
            f"Published ({'; '.join(sorted({source(row['source']) for row in theirs}))}).",
        ),
    ]


def _verdict(results: Results, name: str, way: str) -> Verdict:
    before, after = bits(results, name, "static"), bits(results, name, way)
    return Verdict(
        f"{way.capitalize()} saves bits on top of {'an LSTM' if name == 'LSTM' else name}.",
        fewer_bits(after, before),
        f"{said(after)} against {said(before)} bits per byte, {mean(after) - mean(before):+.3f}; {with_seeds(before)}",
    )


def _line(results: Results, name: str, way: str) -> list[str]:
    saved = [
        one - other
        for one, other in zip(bits(results, name, "static"), bits(results, name, way), strict=True)
    ]
    settings = results["models"][name][0][way]["settings"]
    return [
        name,
        way,
        said(bits(results, name, way)),
        "–" if way == "static" else said(saved, 4),
        ", ".join(f"{key} {value:g}" for key, value in settings.items()) or "–",
    ]


def _published_line(row: Results) -> list[str]:
    saved = f"{row['before'] - row['after']:.3g} {row['unit']}"
    return [row["data"], row["model"], row["how"], f"{row['before']}", f"{row['after']}", saved]


def draw(results: Results) -> list[Picture]:
    names = list(results["models"])
    figure, axes = canvas(1, len(names), width=4.5 * len(names), height=3.2)
    for axis, name in zip(axes, names, strict=True):
        values = [bits(results, name, way) for way in WAYS]
        axis.errorbar(
            range(len(WAYS)),
            [mean(one) for one in values],
            [half_range(one) for one in values],
            fmt="o",
            capsize=3,
        )
        axis.set(title=name, xticks=range(len(WAYS)), xticklabels=WAYS, xlim=(-0.5, len(WAYS) - 0.5))
    axes[0].set(ylabel="bits per byte")
    return [
        Picture(
            "adaptation",
            "Bits per byte as the weights stand still, follow the text, or with a cache.",
            figure,
        )
    ]


EXPERIMENT = Experiment(
    name="adaptation",
    claim="Adapting to a text while it is read saves bits: with dynamic evaluation, and with a neural cache.",
    measure=measure,
    tell=tell,
    draw=draw,
)
