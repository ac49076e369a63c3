"""Adaptation at test time: bits saved by dynamic evaluation and by the neural cache, tuned on the validation split.

Each has a control that knows as much and adapts to nothing: steps of further training on other text, and a cache that
gives every recent token the same weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

from segue.config import Reading
from segue.infer.adapt import Cache, Dynamic, evaluate_cached, evaluate_dynamic, mean_squares
from segue.infer.evaluate import Score, evaluate
from segue.lab.architectures import trained_architecture, tuned_architecture
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.published import published, source
from segue.lab.statistics import fewer_bits, half_range, mean, plus_minus, seed_count
from segue.lab.word_models import FLAT
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model

ARCHITECTURES = ("Transformer-XL", "LSTM")
CONTROLS = {"dynamic evaluation": "steps on other text", "neural cache": "recent tokens"}
MODES = ("static", *(mode for pair in CONTROLS.items() for mode in pair))

SIZES = {True: (1500, 4000, 6000), False: (10_000, 30_000, 30_000)}
"""Quick or not: tokens to choose settings on, tokens to score, and tokens for the mean squares of gradients."""

Adaptation = Dynamic | Cache | None
"""The settings of an adaptation; None for static weights."""


def measure(setting: Setting) -> Results:
    tuned_on, scored, gather = SIZES[setting.quick]
    models: Results = {}
    untrained: Results = {}
    for name in ARCHITECTURES:
        architecture = tuned_architecture(setting, name)
        bundles = [trained_architecture(setting, architecture, seed) for seed in setting.seeds]
        seeds = [_Reader(setting, bundle.model, bundle.reading, gather) for bundle in bundles]
        chosen = _chosen(seeds[0], tuned_on, name)
        models[name] = [_scored(reader, chosen, scored) for reader in seeds]
        torch.manual_seed(setting.seed)
        fresh = _Reader(setting, build_language_model(bundles[0].model.config), bundles[0].reading, gather)
        untrained[name] = _scored(fresh, chosen, tuned_on)
    sizes = {"tuned_on": tuned_on, "scored": scored, "gathered": gather}
    return {**sizes, "models": models, "untrained": untrained}


@dataclass(frozen=True, eq=False)
class _Reader:
    """A model that can be evaluated in every mode."""

    setting: Setting
    model: LanguageModel
    reading: Reading
    gather: int

    @cached_property
    def squares(self) -> dict[str, Tensor]:
        return mean_squares(self.model, self.setting.stream("train"), self.reading, self.gather)

    def read(self, mode: str, adaptation: Adaptation, split: str, tokens: int) -> Score:
        stream = self.setting.stream(split)
        match adaptation:
            case Dynamic():
                lessons = None if mode in CONTROLS else self.setting.stream("valid")
                return evaluate_dynamic(
                    self.model,
                    stream,
                    self.reading,
                    self.squares,
                    adaptation,
                    lessons=lessons,
                    limit=tokens,
                )
            case Cache():
                return evaluate_cached(self.model, stream, self.reading, adaptation, limit=tokens)
            case None:
                return evaluate(self.model, stream, self.reading, limit=tokens)


def _tries(quick: bool) -> dict[str, list[Adaptation]]:
    """The settings that are tried for each mode that has any of its own."""
    learning_rates, decays = ((3e-4, 1e-3), (1e-3,)) if quick else ((1e-4, 3e-4, 1e-3, 3e-3), (0.0, 1e-3))
    flat, weights = (
        ((0.1, 0.3), (0.05,)) if quick else ((0.03, 0.1, 0.3, 1.0, 3.0), (0.02, 0.05, 0.1, 0.2, 0.3))
    )
    return {
        "static": [None],
        "dynamic evaluation": [
            Dynamic(learning_rate=rate, decay=decay) for rate, decay in product(learning_rates, decays)
        ],
        "neural cache": [Cache(flatness=one, weight=weight) for one, weight in product(flat, weights)],
        "recent tokens": [Cache(flatness=FLAT, weight=weight) for weight in weights],
    }


def _chosen(reader: _Reader, tokens: int, label: str) -> dict[str, Adaptation]:
    """Each mode's settings; further training has those of dynamic evaluation."""
    best = {
        mode: _best(reader, mode, tries, tokens, f"{label}, {mode}")
        for mode, tries in _tries(reader.setting.quick).items()
    }
    return {mode: best.get(mode, best["dynamic evaluation"]) for mode in MODES}


def _best(reader: _Reader, mode: str, tries: Sequence[Adaptation], tokens: int, label: str) -> Adaptation:
    """The settings with the lowest validation loss, for the model of the first seed."""
    if len(tries) == 1:
        return tries[0]
    losses = []
    for adaptation in tries:
        losses.append(reader.read(mode, adaptation, "valid", tokens).nats)
        reader.setting.report(label, len(losses), len(tries))
    return tries[losses.index(min(losses))]


def _scored(reader: _Reader, adaptations: Mapping[str, Adaptation], tokens: int) -> Results:
    """Bits per byte in every mode."""
    return {
        mode: {
            "bits": reader.read(mode, adaptation, "test", tokens).bits_per_byte,
            "settings": _settings(adaptation),
        }
        for mode, adaptation in adaptations.items()
    }


def _settings(adaptation: Adaptation) -> Results:
    """The settings that were tuned."""
    match adaptation:
        case None:
            return {}
        case Cache(flatness=flatness) if flatness == FLAT:
            return adaptation.model_dump(include={"weight"})
        case _:
            return adaptation.model_dump(include={"learning_rate", "decay", "weight", "flatness"})


def bits(results: Results, name: str, mode: str) -> list[float]:
    """Bits per byte of each seed."""
    return [one[mode]["bits"] for one in results["models"][name]]


def tell(results: Results) -> list[Block]:
    names = list(results["models"])
    theirs = published("adaptation")["rows"]
    return [
        "Names, words and phrases of a text return later in it. Dynamic evaluation takes a gradient step on every "
        "segment after it was scored; the neural cache gives some probability to tokens that followed similar hidden "
        "states. In both, a token is always scored before the model adapts to it. "
        f"Their settings were chosen on {results['tuned_on']:,} tokens of the validation split, and "
        f"{results['scored']:,} tokens of the test split were scored. Weights that have not learned enough, or "
        "nothing at all, gain from any text. So each mode has a control: as many steps of further training on "
        "validation text, and a cache that gives all recent tokens the same weight, whatever the states. Only what is "
        "saved beyond the control counts.",
        *(_verdict(results, name, mode) for name in names for mode in CONTROLS),
        Table(
            ["model", "mode", "bits per byte", "saved", "untrained weights", "settings"],
            [_line(results, name, mode) for name in names for mode in MODES],
            f"Mean ± half the range of seeds. Untrained weights, with the same settings: of {results['tuned_on']:,} "
            "tokens, once.",
        ),
        Table(
            ["data", "model", "with", "before", "after", "saved"],
            [_published_line(row) for row in theirs],
            f"Published ({'; '.join(sorted({source(row['source']) for row in theirs}))}).",
        ),
    ]


def _verdict(results: Results, name: str, mode: str) -> Verdict:
    before, after, control = (bits(results, name, one) for one in ("static", mode, CONTROLS[mode]))
    fresh = results["untrained"][name]
    beyond = fresh[mode]["bits"] - fresh[CONTROLS[mode]]["bits"]
    return Verdict(
        f"{mode.capitalize()} saves bits with {'an LSTM' if name == 'LSTM' else name}, by adapting to the text.",
        fewer_bits(after, before) and fewer_bits(after, control),
        f"{plus_minus(after)} against {plus_minus(before)} bits per byte, {mean(after) - mean(before):+.3f}; with "
        f"{CONTROLS[mode]} alone {plus_minus(control)}, {mean(control) - mean(before):+.3f}; untrained weights "
        f"{beyond:+.3f} against their control, so {'training' if beyond > 0 else 'not training alone'} made this; "
        f"{seed_count(before)}",
        size=f"{mean(after) - mean(before):+.3f} bits per byte, {mean(after) - mean(control):+.3f} against its control",
    )


def _line(results: Results, name: str, mode: str) -> list[str]:
    saved = [
        one - other
        for one, other in zip(bits(results, name, "static"), bits(results, name, mode), strict=True)
    ]
    settings = results["models"][name][0][mode]["settings"]
    return [
        name,
        mode,
        plus_minus(bits(results, name, mode)),
        "–" if mode == "static" else plus_minus(saved, 4),
        f"{results['untrained'][name][mode]['bits']:.3f}",
        ", ".join(f"{key} {value:g}" for key, value in settings.items()) or "–",
    ]


def _published_line(row: Results) -> list[str]:
    saved = f"{row['before'] - row['after']:.3g} {row['unit']}"
    return [row["data"], row["model"], row["how"], f"{row['before']}", f"{row['after']}", saved]


def draw(results: Results) -> list[Picture]:
    names = list(results["models"])
    figure, axes = canvas(1, len(names), width=4.5 * len(names), height=3.2)
    for axis, name in zip(axes, names, strict=True):
        values = [bits(results, name, mode) for mode in MODES]
        axis.errorbar(
            range(len(MODES)),
            [mean(one) for one in values],
            [half_range(one) for one in values],
            fmt="o",
            capsize=3,
        )
        axis.set(title=name, xticks=range(len(MODES)), xlim=(-0.5, len(MODES) - 0.5))
        axis.set_xticklabels([mode.replace(" ", "\n") for mode in MODES], fontsize="small")
    axes[0].set(ylabel="bits per byte")
    return [
        Picture(
            "adaptation",
            "Bits per byte with static weights, dynamic evaluation and a neural cache, beside their controls.",
            figure,
        )
    ]


EXPERIMENT = Experiment(
    name="adaptation",
    claim="Adapting to a text at test time saves bits, with dynamic evaluation and with a neural cache.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
