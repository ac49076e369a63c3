"""What each part of a Transformer is worth: take one away, train with the same budget, look at the curve.

The parts that nobody should do without have no switch in the house: layers without a way around, and with a norm over
the batch, live here. Letters: B lanes, T tokens, C width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from segue.config import Reach, XLConfig
from segue.lab.drawing import canvas
from segue.lab.exercise import brief, exercise
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.kept import kept
from segue.lab.spread import fewer_bits, lower, mean, said, with_seeds
from segue.nn.attention import Attention
from segue.nn.block import Block as Layer
from segue.nn.footprint import parameters
from segue.nn.xl import TransformerXL, initialise
from segue.recipe import Schedule
from segue.text.corpus import Stream
from segue.text.lanes import Lanes, Segment

ISOLATED = Reach(memory=0)
WIDTH = 64
SMOOTHING = 0.1
RATES = (2e-3, 4e-3, 8e-3)
"""That every side tries; the quick version takes the middle one."""


@dataclass(frozen=True)
class Sizes:
    """The budget of every side."""

    steps: int
    lanes: int = 16
    segment: int = 64
    scored: int = 4096  # tokens of the test split
    looks: int = 10  # points of a curve


QUICK, FULL = Sizes(steps=80, scored=2048, looks=5), Sizes(steps=600, scored=16_384)


class WithoutSkip(Layer):
    """Nothing goes around attention and feed-forward: what they give out is all there is."""

    def _added(self, hidden: Tensor, part: Tensor, norm: nn.Module) -> Tensor:  # noqa: ARG002
        after: Tensor = norm(self.dropout(part))
        return after


class OverBatch(nn.Module):
    """BatchNorm in the place of LayerNorm: each feature is normed over all tokens of all lanes."""

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


def _over_batch(model: TransformerXL) -> None:
    for block in model.blocks:
        assert isinstance(block, Layer)
        block.attention_norm = OverBatch(model.config.width)  # type: ignore[assignment]
        block.feed_forward_norm = OverBatch(model.config.width)  # type: ignore[assignment]


def _nothing(model: TransformerXL) -> None:
    """As it is."""


@dataclass(frozen=True)
class Variant:
    """What differs from the whole."""

    shape: dict[str, Any] = field(default_factory=dict)
    change: Callable[[TransformerXL], None] = _nothing
    smoothing: float = SMOOTHING
    warmup: bool = True


WHOLE = "all parts"
VARIANTS = {
    WHOLE: Variant(),
    "no √d scaling": Variant(change=_unscaled),
    "one head": Variant(shape={"heads": 1}),
    "no skip connections": Variant(change=_without_skip),
    "BatchNorm for LayerNorm": Variant(change=_over_batch),
    "no label smoothing": Variant(smoothing=0.0),
    "no warm-up": Variant(warmup=False),
}


def measure(setting: Setting) -> Results:
    size, found = QUICK if setting.quick else FULL, {}
    for name, variant in VARIANTS.items():
        tries = {} if setting.quick else {rate: _tried(setting, name, size, rate) for rate in RATES}
        rate = min(tries, key=tries.__getitem__) if tries else RATES[1]
        seeds = [_learned(setting, name, size, rate, seed) for seed in setting.seeds]
        found[name] = {
            "learning_rate": rate,
            "tries": {f"{rate:g}": bits for rate, bits in tries.items()},
            "parameters": parameters(_config(setting, variant)),
            "seeds": seeds,
        }
    return {
        "steps": size.steps,
        "tokens": size.steps * size.lanes * size.segment,
        "smoothing": SMOOTHING,
        "variants": found,
        "neighbours": {
            name: dependence(setting, VARIANTS[name], size) for name in (WHOLE, "BatchNorm for LayerNorm")
        },
    }


def _config(setting: Setting, variant: Variant) -> XLConfig:
    """Fresh weights as wide as Glorot would have them: with smaller ones scaling would be nothing to begin with."""
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
    """Adam, as in the paper: Muon would hide what warm-up and scaling are for."""
    return brief(steps, rate, optimizer="adam", warmup=steps // 10 if variant.warmup else 0)


def _tried(setting: Setting, name: str, size: Sizes, rate: float) -> float:
    """Bits per token of the validation split after a quarter of the steps."""
    short = Sizes(max(1, size.steps // 4), size.lanes, size.segment, size.scored, looks=1)
    return float(_learned(setting, name, short, rate, setting.seed, split="valid")["bits"])


def _learned(
    setting: Setting, name: str, size: Sizes, rate: float, seed: int, *, split: str = "test"
) -> dict[str, Any]:
    """What one model comes to: trained now, unless it already was."""
    what = {
        "variant": name,
        "learning_rate": rate,
        "seed": seed,
        "split": split,
        **asdict(size),
    }
    return dict(kept(setting, __name__, what, lambda: _trained(setting, name, size, rate, seed, split)))


def _trained(setting: Setting, name: str, size: Sizes, rate: float, seed: int, split: str) -> dict[str, Any]:
    variant = VARIANTS[name]
    model, lanes = _model(setting, variant, seed), Lanes(setting.stream("train"), size.lanes, documents=False)
    curve: list[list[float]] = []
    every = max(1, size.steps // size.looks)

    def loss(step: int) -> Tensor:
        segment = lanes.segment(step * size.segment, size.segment)
        hidden = _read(model, segment)
        return model.vocabulary.smoothed_nats(hidden, segment.targets, variant.smoothing).mean()

    def look(step: int) -> None:
        if step % every == 0:
            curve.append([step, scored(model, setting.stream("valid"), size.segment, 2048)[0]])

    told, schedule = f"{name}, rate {rate:g}, seed {seed}", _schedule(variant, size.steps, rate)
    whole = exercise(model, schedule, loss, told=told, report=setting.report, after=look)
    bits, accuracy = scored(model, setting.stream(split), size.segment, size.scored)
    return {"seed": seed, "bits": bits, "accuracy": accuracy, "curve": curve, "finite": whole}


def _read(model: TransformerXL, segment: Segment) -> Tensor:
    hidden: Tensor = model(segment.tokens, model.start(lanes=len(segment.tokens), reach=ISOLATED))[0]
    return hidden


@torch.no_grad()
def scored(model: TransformerXL, stream: Stream, segment: int, tokens: int) -> tuple[float, float]:
    """Bits per token of isolated segments, and how often the likeliest token is the right one."""
    training = model.training
    count = max(1, min(tokens, len(stream.ids) - 1) // (segment + 1))
    rows = Lanes(stream, count, documents=False).segment(0, segment)
    hidden = _read(model.eval(), rows)
    bits = model.nats(hidden, rows.targets).double().mean().item() / math.log(2)
    accuracy = (model.logprobs(hidden).argmax(dim=-1) == rows.targets).double().mean().item()
    model.train(training)
    return bits, accuracy


@torch.no_grad()
def dependence(setting: Setting, variant: Variant, size: Sizes) -> dict[str, float]:
    """How much what a model makes of one sentence changes if the others in its batch change, at most."""
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
    whole, plain = _of(variants, WHOLE, "bits"), _of(variants, "no label smoothing", "bits")
    right, other = _of(variants, WHOLE, "accuracy"), _of(variants, "no label smoothing", "accuracy")
    over = near["BatchNorm for LayerNorm"]
    return [
        "A Transformer is made of parts that each seem small. Here a little one (4 layers of 64, isolated "
        f"segments) learns to predict text from {results['tokens']:,} tokens, once whole and once without each part; "
        "in the full version every side first tries the same three rates. The curves show validation text as training "
        "goes on.",
        *(_verdict(variants, name, claim) for name, claim in CLAIMS.items()),
        Verdict(
            "Label smoothing makes a model less sure, so that it predicts worse in bits, but more often right.",
            fewer_bits(plain, whole) and lower(other, right),
            f"with smoothing {said(whole)} bits and {said([100 * one for one in right], 1)} % right, without "
            f"{said(plain)} bits and {said([100 * one for one in other], 1)} %; {with_seeds(whole)}",
        ),
        Verdict(
            "With BatchNorm what is made of a sentence depends on its neighbours in the batch; with LayerNorm not.",
            over["training"] > 1e-3 and near[WHOLE]["training"] < 1e-5,
            "a property of the norms, with untrained weights as with any: with other neighbours it changes by up to "
            f"{over['training']:.2g} in training ({over['reading']:.2g} when "
            f"reading with stored averages); with LayerNorm by {near[WHOLE]['training']:.2g}",
        ),
        Table(
            ["model", "bits per token", "right", "against the whole", "rate", "parameters"],
            [_line(variants, name) for name in variants],
            "On test text, mean ± half the range of seeds.",
        ),
    ]


def _of(variants: Results, name: str, what: str) -> list[float]:
    return [one[what] for one in variants[name]["seeds"]]


def _verdict(variants: Results, name: str, claim: str) -> Verdict:
    whole, without = _of(variants, WHOLE, "bits"), _of(variants, name, "bits")
    return Verdict(
        claim,
        fewer_bits(whole, without),
        f"{said(whole)} bits with it, {said(without)} without; {with_seeds(whole)}",
    )


def _line(variants: Results, name: str) -> list[str]:
    bits = _of(variants, name, "bits")
    stopped = sum(not one["finite"] for one in variants[name]["seeds"])
    return [
        name + (f" (not finite with {stopped} of {len(bits)} seeds)" if stopped else ""),
        said(bits),
        f"{mean([100 * one for one in _of(variants, name, 'accuracy')]):.1f} %",
        f"{mean(bits) - mean(_of(variants, WHOLE, 'bits')):+.3f}",
        f"{variants[name]['learning_rate']:g}",
        f"{variants[name]['parameters']:,}",
    ]


def draw(results: Results) -> list[Picture]:
    figure, (axis,) = canvas(width=8.5, height=4.2)
    for name, found in results["variants"].items():
        curves: Sequence[Sequence[Sequence[float]]] = [
            one["curve"] for one in found["seeds"] if one["finite"]
        ]
        if not curves:
            continue
        steps = [step for step, _ in curves[0]]
        bits = [mean([curve[place][1] for curve in curves]) for place in range(len(steps))]
        axis.plot(steps, bits, linewidth=2.4 if name == WHOLE else 1.2, marker=".", label=name)
    axis.set(xlabel="steps", ylabel="bits per token, validation")
    axis.legend(fontsize="small")
    return [Picture("parts", "What is learned with all parts, and without each; lower is better.", figure)]


EXPERIMENT = Experiment(
    name="parts",
    claim="Scaling by √d, several heads, skip connections, LayerNorm, label smoothing and warm-up are each worth "
    "having.",
    measure=measure,
    tell=tell,
    draw=draw,
)
