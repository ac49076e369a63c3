"""Ablation of the parts of a Transformer: remove one part, train with the same budget, compare the learning curves.

segue itself has no option to remove a necessary part, so layers without skip connections and with BatchNorm are built
here. Letters: B lanes, T tokens, C width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from segue.config import Reach, XLConfig
from segue.footprint import parameters
from segue.lab.cache import cached
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import always_lower, fewer_bits, mean, plus_minus, seed_count
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.attention import Attention
from segue.nn.block import Block as Layer
from segue.nn.xl import TransformerXL, initialise
from segue.recipe import Schedule
from segue.text.corpus import Stream
from segue.text.lanes import Lanes, Segment

ISOLATED = Reach(memory=0)
WIDTH = 64
SMOOTHING = 0.1
LEARNING_RATES = (2e-3, 4e-3, 8e-3)
"""The learning rates that every variant tries; the quick version takes the middle one."""


@dataclass(frozen=True)
class Sizes:
    """The budget of every variant."""

    steps: int
    lanes: int = 16
    segment: int = 64
    scored: int = 4096  # tokens of the test split
    curve_points: int = 10


QUICK, FULL = Sizes(steps=80, scored=2048, curve_points=5), Sizes(steps=600, scored=16_384)


class WithoutSkip(Layer):
    """A layer without skip connections: the output of attention or feed-forward is not added to its input."""

    def _added(self, hidden: Tensor, part: Tensor, norm: nn.Module) -> Tensor:  # noqa: ARG002
        after: Tensor = norm(self.dropout(part))
        return after


class BatchNorm(nn.Module):
    """BatchNorm in place of LayerNorm: each feature is normalized over all tokens of all lanes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden.flatten(0, -2)).view_as(hidden)
        return normed


def _unscaled(model: TransformerXL) -> None:
    for part in model.modules():
        if isinstance(part, Attention):
            part.scale = 1.0


def _without_skip(model: TransformerXL) -> None:
    model.blocks = nn.ModuleList(WithoutSkip(model.config) for _ in model.blocks)
    initialise(model, model.config.init)


def _with_batch_norm(model: TransformerXL) -> None:
    for block in model.blocks:
        assert isinstance(block, Layer)
        block.attention_norm = BatchNorm(model.config.width)  # type: ignore[assignment]
        block.feed_forward_norm = BatchNorm(model.config.width)  # type: ignore[assignment]


def _unchanged(model: TransformerXL) -> None:
    """No change."""


@dataclass(frozen=True)
class Variant:
    """How a variant differs from the complete model."""

    shape: dict[str, Any] = field(default_factory=dict)
    change: Callable[[TransformerXL], None] = _unchanged
    smoothing: float = SMOOTHING
    warmup: bool = True


COMPLETE = "all parts"
VARIANTS = {
    COMPLETE: Variant(),
    "no √d scaling": Variant(change=_unscaled),
    "one head": Variant(shape={"heads": 1}),
    "no skip connections": Variant(change=_without_skip),
    "BatchNorm for LayerNorm": Variant(change=_with_batch_norm),
    "no label smoothing": Variant(smoothing=0.0),
    "no warm-up": Variant(warmup=False),
}


def measure(setting: Setting) -> Results:
    size, variants = QUICK if setting.quick else FULL, {}
    for name, variant in VARIANTS.items():
        tries = {} if setting.quick else {rate: _tried(setting, name, size, rate) for rate in LEARNING_RATES}
        rate = min(tries, key=tries.__getitem__) if tries else LEARNING_RATES[1]
        seeds = [_learned(setting, name, size, rate, seed) for seed in setting.seeds]
        variants[name] = {
            "learning_rate": rate,
            "tries": {f"{rate:g}": bits for rate, bits in tries.items()},
            "parameters": parameters(_config(setting, variant)),
            "seeds": seeds,
        }
    return {
        "steps": size.steps,
        "tokens": size.steps * size.lanes * size.segment,
        "smoothing": SMOOTHING,
        "variants": variants,
        "neighbours": {
            name: batch_dependence(setting, VARIANTS[name], size)
            for name in (COMPLETE, "BatchNorm for LayerNorm")
        },
    }


def _config(setting: Setting, variant: Variant) -> XLConfig:
    """Initial weights as large as Glorot's: with smaller ones, scores are small and scaling has no effect."""
    shape = {
        "vocab": setting.corpus.header.vocab,
        "width": WIDTH,
        "layers": 4,
        "heads": 4,
        "init": WIDTH**-0.5,
    }
    return XLConfig.model_validate({**shape, **variant.shape})


def _model(setting: Setting, variant: Variant, seed: int) -> TransformerXL:
    torch.manual_seed(seed)
    model = TransformerXL(_config(setting, variant))
    variant.change(model)
    return model


def _schedule(variant: Variant, steps: int, rate: float) -> Schedule:
    """Adam, as in the paper: with Muon, warm-up and scaling would have little effect."""
    return short_schedule(steps, rate, optimizer="adam", warmup=steps // 10 if variant.warmup else 0)


def _tried(setting: Setting, name: str, size: Sizes, rate: float) -> float:
    """Bits per token of the validation split after a quarter of the steps."""
    short = Sizes(max(1, size.steps // 4), size.lanes, size.segment, size.scored, curve_points=1)
    return float(_learned(setting, name, short, rate, setting.seed, split="valid")["bits"])


def _learned(
    setting: Setting, name: str, size: Sizes, rate: float, seed: int, *, split: str = "test"
) -> dict[str, Any]:
    """Loss, accuracy and learning curve of one model; from the cache if it was trained before."""
    inputs = {
        "variant": name,
        "learning_rate": rate,
        "seed": seed,
        "split": split,
        **asdict(size),
    }
    return dict(cached(setting, __name__, inputs, lambda: _trained(setting, name, size, rate, seed, split)))


def _trained(setting: Setting, name: str, size: Sizes, rate: float, seed: int, split: str) -> dict[str, Any]:
    variant = VARIANTS[name]
    model, lanes = _model(setting, variant, seed), Lanes(setting.stream("train"), size.lanes, documents=False)
    curve: list[list[float]] = []
    every = max(1, size.steps // size.curve_points)

    def loss(step: int) -> Tensor:
        segment = lanes.segment(step * size.segment, size.segment)
        hidden = _read(model, segment)
        return model.vocabulary.smoothed_nats(hidden, segment.targets, variant.smoothing).mean()

    def validate(step: int) -> None:
        if step % every == 0:
            curve.append([step, scored(model, setting.stream("valid"), size.segment, 2048)[0]])

    label, schedule = f"{name}, learning rate {rate:g}, seed {seed}", _schedule(variant, size.steps, rate)
    finite = optimize(model, schedule, loss, label=label, report=setting.report, after=validate)
    bits, accuracy = scored(model, setting.stream(split), size.segment, size.scored)
    return {"seed": seed, "bits": bits, "accuracy": accuracy, "curve": curve, "finite": finite}


def _read(model: TransformerXL, segment: Segment) -> Tensor:
    hidden: Tensor = model(segment.tokens, model.start(lanes=len(segment.tokens), reach=ISOLATED))[0]
    return hidden


@torch.no_grad()
def scored(model: TransformerXL, stream: Stream, segment: int, tokens: int) -> tuple[float, float]:
    """Bits per token on isolated segments, and the accuracy of the likeliest token."""
    training = model.training
    count = max(1, min(tokens, len(stream.ids) - 1) // (segment + 1))
    rows = Lanes(stream, count, documents=False).segment(0, segment)
    hidden = _read(model.eval(), rows)
    bits = model.nats(hidden, rows.targets).double().mean().item() / math.log(2)
    accuracy = (model.logprobs(hidden).argmax(dim=-1) == rows.targets).double().mean().item()
    model.train(training)
    return bits, accuracy


@torch.no_grad()
def batch_dependence(setting: Setting, variant: Variant, size: Sizes) -> dict[str, float]:
    """The largest change of one lane's hidden states if the other lanes of the batch change."""
    model = _model(setting, variant, setting.seed)
    lanes = Lanes(setting.stream("train"), size.lanes, documents=False)
    one, other = (lanes.segment(place * size.segment, size.segment) for place in (0, 1))
    other.tokens[0] = one.tokens[0]
    changes = {}
    for mode, training in (("training", True), ("reading", False)):
        model.train(training)
        with_one, with_other = (_read(model, segment)[0] for segment in (one, other))
        changes[mode] = float((with_one - with_other).abs().max())
    return changes


CLAIMS = {
    "no √d scaling": "Scaling the scores by √d helps.",
    "one head": "Several heads are better than one.",
    "no skip connections": "Skip connections are needed.",
    "BatchNorm for LayerNorm": "LayerNorm is better here than BatchNorm.",
    "no warm-up": "Warm-up helps.",
}


def tell(results: Results) -> list[Block]:
    variants, near = results["variants"], results["neighbours"]
    smooth, sharp = _values(variants, COMPLETE, "bits"), _values(variants, "no label smoothing", "bits")
    right, other = (
        [100 * one for one in _values(variants, name, "accuracy")]
        for name in (COMPLETE, "no label smoothing")
    )
    batch_norm, layer_norm = near["BatchNorm for LayerNorm"], near[COMPLETE]
    return [
        "A Transformer has many parts that each seem small. Here a small one (4 layers of width 64, isolated "
        f"segments) is trained on {results['tokens']:,} tokens, once complete and once without each part; "
        "in the full version every variant first tries the same three learning rates. The conditions are those of "
        "2017, with Adam and large initial weights: with smaller ones, or with Muon, scaling and warm-up would matter "
        "little. A rate is chosen with one seed; where seeds differ widely, it was near the highest that the variant "
        "bears. The curves show the validation loss during training.",
        *(_verdict(variants, name, claim) for name, claim in CLAIMS.items()),
        Verdict(
            "Label smoothing makes predictions less confident: more bits per token, but a higher accuracy.",
            fewer_bits(sharp, smooth) and always_lower(other, right),
            f"with smoothing {plus_minus(smooth)} bits and {plus_minus(right, 1)} % accuracy, without "
            f"{plus_minus(sharp)} bits and {plus_minus(other, 1)} %; {seed_count(smooth)}",
        ),
        Verdict(
            "With BatchNorm the output for a sequence depends on the others in its batch; with LayerNorm it does not.",
            batch_norm["training"] > 1e-3 and layer_norm["training"] < 1e-5,
            "a property of the norms, measured with untrained weights: with other sequences in the batch the hidden "
            f"states change by up to {batch_norm['training']:.2g} in training mode ({batch_norm['reading']:.2g} in "
            f"evaluation mode, with running averages); with LayerNorm by {layer_norm['training']:.2g}",
        ),
        Table(
            ["model", "bits per token", "accuracy", "difference in bits", "learning rate", "parameters"],
            [_line(variants, name) for name in variants],
            "On test text, mean ± half the range of seeds.",
        ),
    ]


def _values(variants: Results, name: str, what: str) -> list[float]:
    return [one[what] for one in variants[name]["seeds"]]


def _verdict(variants: Results, name: str, claim: str) -> Verdict:
    complete, without = _values(variants, COMPLETE, "bits"), _values(variants, name, "bits")
    return Verdict(
        claim,
        fewer_bits(complete, without),
        f"{plus_minus(complete)} bits with it, {plus_minus(without)} without; {seed_count(complete)}",
    )


def _line(variants: Results, name: str) -> list[str]:
    bits = _values(variants, name, "bits")
    stopped = sum(not one["finite"] for one in variants[name]["seeds"])
    return [
        name + (f" (not finite with {stopped} of {len(bits)} seeds)" if stopped else ""),
        plus_minus(bits),
        f"{mean([100 * one for one in _values(variants, name, 'accuracy')]):.1f} %",
        f"{mean(bits) - mean(_values(variants, COMPLETE, 'bits')):+.3f}",
        f"{variants[name]['learning_rate']:g}",
        f"{variants[name]['parameters']:,}",
    ]


def draw(results: Results) -> list[Picture]:
    figure, (axis,) = canvas(width=8.5, height=4.2)
    for name, variant in results["variants"].items():
        curves: Sequence[Sequence[Sequence[float]]] = [
            one["curve"] for one in variant["seeds"] if one["finite"]
        ]
        if not curves:
            continue
        steps = [step for step, _ in curves[0]]
        bits = [mean([curve[place][1] for curve in curves]) for place in range(len(steps))]
        axis.plot(steps, bits, linewidth=2.4 if name == COMPLETE else 1.2, marker=".", label=name)
    axis.set(xlabel="steps", ylabel="bits per token, validation")
    axis.legend(fontsize="small")
    return [Picture("parts", "Learning curves with all parts, and without each; lower is better.", figure)]


EXPERIMENT = Experiment(
    name="parts",
    claim="Scaling by √d, several heads, skip connections, LayerNorm, label smoothing and warm-up each help.",
    measure=measure,
    tell=tell,
    draw=draw,
)
