"""Length extrapolation: bits per byte by the context length at evaluation.

Encodings that know distances are evaluated with a longer memory, absolute ones with a longer segment. Learned positions
are left out: their table ends (`lengths` has them). A clamp is chosen on the validation split, as in the published
evaluations, and so is the longer length that is compared with that of training.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from segue.checkpoint import Bundle, load
from segue.config import Reach, Reading
from segue.lab.cache import cached
from segue.lab.drawing import COLOURS, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import fewer_bits, mean, plus_minus, seed_count
from segue.lab.trained import (
    EvaluationMode,
    budget,
    recipe_for,
    score,
    scored_tokens,
    trained_run,
    with_memory,
)
from segue.lab.tuning import tuned


class Side(NamedTuple):
    """A positional encoding, how it is evaluated, and what is claimed about it."""

    label: str
    encoding: str
    claim: str
    gains: bool  # the claim is that a longer context helps
    clamped: bool = False
    spanned: bool = (
        True  # every token sees as many keys as the memory is long; else memory and its own segment
    )


XL = "Transformer-XL's encoding gains from a longer"
SIDES = {
    "xl": Side(
        "xl, no clamp", "xl", f"{XL} context than in training, with a span and without a clamp.", gains=True
    ),
    "xl-clamp": Side(
        "xl, clamp",
        "xl",
        f"{XL} context than in training, with a span and a clamp as published.",
        gains=True,
        clamped=True,
    ),
    "xl-memory": Side(
        "xl, memory alone",
        "xl",
        f"{XL} memory than in training, without span or clamp.",
        gains=True,
        spanned=False,
    ),
    "xl-memory-clamp": Side(
        "xl, memory and clamp",
        "xl",
        f"{XL} memory than in training, with a clamp and without a span.",
        gains=True,
        clamped=True,
        spanned=False,
    ),
    "shaw": Side(
        "Shaw",
        "shaw",
        "Shaw's relative positions get worse with a longer context than in training.",
        gains=False,
    ),
    "alibi": Side("ALiBi", "alibi", "ALiBi gains from a longer context than in training.", gains=True),
    "rotary": Side(
        "rotary", "rotary", "Rotary positions get worse with a longer context than in training.", gains=False
    ),
    "sinusoidal": Side(
        "sinusoids, isolated segments",
        "sinusoidal",
        "Absolute sinusoids get worse with longer segments than in training.",
        gains=False,
    ),
}
QUICK_SIDES = ("xl", "xl-clamp", "xl-memory-clamp", "shaw", "alibi", "sinusoidal")
LENGTH_FACTORS, QUICK_FACTORS = (1, 2, 4, 8, 16), (1, 4, 16)
"""The context lengths at evaluation, in multiples of the longest one in training."""

CLAMP_SHARES, QUICK_SHARES = (0.25, 0.5, 0.75, 1.0), (0.5, 1.0)
"""The clamps that are tried, as shares of the longest distance in training."""

NEAR = 0.2
"""Bits per byte: what loses less at any length is also drawn on a scale of its own."""


def measure(setting: Setting) -> Results:
    names = QUICK_SIDES if setting.quick else tuple(SIDES)
    sides = {name: _side(setting, SIDES[name]) for name in names}
    return {"sides": sides, "tokens": budget(setting).tokens, "scored": scored_tokens(setting)}


def _side(setting: Setting, side: Side) -> Results:
    segment, isolated = budget(setting).segment, side.encoding == "sinusoidal"
    longest = segment if isolated or not side.spanned else 2 * segment  # segment, memory, or keys in training
    recipe = recipe_for(setting, seed=setting.seed, encoding=side.encoding, memory=0 if isolated else segment)
    best = tuned(setting, recipe, side.encoding)
    lengths = [times * longest for times in (QUICK_FACTORS if setting.quick else LENGTH_FACTORS)]
    seeds = []
    for seed in setting.seeds:
        run = trained_run(setting, best.seeded(seed), f"{side.encoding}, seed {seed}")
        inputs = {"run": run.name, "side": list(side), "lengths": lengths, "scored": scored_tokens(setting)}
        seeds.append(cached(setting, __name__, inputs, partial(_read, setting, side, run, lengths)))
    return {
        **best.summary(),
        "trained": longest,
        "lengths": lengths,
        **{key: [one[key] for one in seeds] for key in ("bits", "valid", "clamps")},
    }


def _read(setting: Setting, side: Side, run: Path, lengths: Sequence[int]) -> Results:
    """Bits per byte by length on the test split, with the clamp that is best on the validation split; and there."""
    bundle = load(run)
    distances = bundle.reading.segment + bundle.reading.reach.memory - 1  # the longest in training
    shares = QUICK_SHARES if setting.quick else CLAMP_SHARES
    clamps = [int(share * distances) for share in shares] if side.clamped else [None]
    bits, valid, chosen = [], [], []
    for length in lengths:
        modes = {clamp: _mode(bundle, side, length, clamp) for clamp in clamps}
        losses = {
            clamp: score(setting, bundle, mode, split="valid", label=f"validation, {mode.name}").bits_per_byte
            for clamp, mode in modes.items()
        }
        best = min(losses, key=losses.__getitem__)
        valid.append(losses[best])
        chosen.append(best)
        bits.append(score(setting, bundle, modes[best], label=f"longer context, {side.label}").bits_per_byte)
    return {"bits": bits, "valid": valid, "clamps": chosen}


def _mode(bundle: Bundle, side: Side, length: int, clamp: int | None) -> EvaluationMode:
    """Isolated segments of that length, or a memory of it; with a span, that many keys for every token."""
    segment = bundle.reading.segment
    if side.encoding == "sinusoidal":
        reading = Reading(segment=length, reach=Reach(memory=0, positions="restart"))
        return EvaluationMode(f"segments of {length}", reading, length)
    if side.spanned:
        return with_memory(bundle, length, clamp=clamp)
    reading = Reading(segment=segment, reach=Reach(memory=length, clamp=clamp))
    return EvaluationMode(f"memory {length} alone", reading, length + segment)


def gains(side: Results) -> tuple[list[float], list[float], int]:
    """Bits of each seed at the trained length and at the best longer length, and that length.

    The validation split chooses it. (Older records have the test split only.)
    """
    seeds = side["valid"] if "valid" in side else side["bits"]
    means = [mean(column) for column in zip(*seeds, strict=True)]
    best = min(range(1, len(means)), key=means.__getitem__)
    return [one[0] for one in side["bits"]], [one[best] for one in side["bits"]], side["lengths"][best]


def tell(results: Results) -> list[Block]:
    sides = results["sides"]
    factors = _factors(next(iter(sides.values())))
    return [
        "A model may be evaluated with a longer context than in training. Whether that helps depends on its "
        f"positional encoding. Each model here was trained on {results['tokens']:,} "
        f"tokens with the same budget, and then evaluated with up to {factors[-1]} times the context "
        "length of training: encodings that know distances with a longer memory, the absolute one with longer "
        "segments, since its positions restart in each. A context length is that of the memory, or of a span or "
        "segment; a memory has the segment's own tokens beside it. Shaw's table has a row for each distance of "
        "training, and longer distances share the last, which training rarely saw. "
        + (
            "The validation split chooses the longer length that is compared."
            if all("valid" in side for side in sides.values())
            else "The best longer length is compared."
        )
        + " Runs of yours, trained for longer or on other text, are read with longer memories by segue lab results "
        "--run RUN.",
        *([_chosen_clamps(sides)] if "xl-clamp" in sides else []),
        *(_verdict(SIDES[name], side) for name, side in sides.items()),
        *([_clamp_verdict(sides)] if {"xl", "xl-clamp"} <= sides.keys() else []),
        Table(
            ["positions", *(f"{times} ×" for times in factors)],
            [[SIDES[name].label, *_by_length(side)] for name, side in sides.items()],
            f"Bits per byte of {results['scored']:,} test tokens, by context length in multiples of training's: "
            + ", ".join(f"{side['trained']} for {SIDES[name].label}" for name, side in sides.items())
            + ".",
        ),
    ]


def _factors(side: Results) -> list[int]:
    return [length // side["trained"] for length in side["lengths"]]


def _by_length(side: Results) -> list[str]:
    return [plus_minus(column) for column in zip(*side["bits"], strict=True)]


def _chosen_clamps(sides: Results) -> str:
    chosen = "; ".join(
        f"{SIDES[name].label}: {_clamps_by_length(side)}"
        for name, side in sides.items()
        if SIDES[name].clamped
    )
    return (
        "A clamp lets all distances beyond it count as that one; the published evaluations of Transformer-XL have one. "
        f"It is chosen on the validation split, for each seed and length. {chosen}."
    )


def _clamps_by_length(side: Results) -> str:
    by_length: list[Sequence[int]] = list(zip(*side["clamps"], strict=True))
    return ", ".join(
        f"{'/'.join(map(str, sorted(set(clamps))))} at {length}"
        for length, clamps in zip(side["lengths"], by_length, strict=True)
    )


def _verdict(side: Side, results: Results) -> Verdict:
    before, after, length = gains(results)
    change = mean(after) - mean(before)
    because = (
        f"{plus_minus(before)} bits per byte at the {results['trained']} of training, {plus_minus(after)} at "
        f"{length}, the best longer length ({change:+.3f}); {seed_count(before)}"
    )
    return Verdict(
        side.claim,
        fewer_bits(after, before) if side.gains else fewer_bits(before, after),
        because,
        size=f"{change:+.3f} bits per byte at {length / results['trained']:g} times the length",
        sure=seed_count(before),
    )


def _clamp_verdict(sides: Results) -> Verdict:
    """Whether the clamp pays at the longest length."""
    plain, clamped = ([one[-1] for one in sides[name]["bits"]] for name in ("xl", "xl-clamp"))
    saved = mean(plain) - mean(clamped)
    return Verdict(
        f"With {_factors(sides['xl'])[-1]} times the context of training, a clamp makes Transformer-XL better.",
        fewer_bits(clamped, plain),
        f"{plus_minus(clamped)} against {plus_minus(plain)} bits per byte; {seed_count(plain)}",
        size=f"{-saved:+.3f} bits per byte",
        sure=seed_count(plain),
    )


def draw(results: Results) -> list[Picture]:
    """All sides by length; and how those change that stay near their score at the trained length."""
    figure, (left, right) = canvas(1, 2, width=10.5, height=4)
    for number, (name, side) in enumerate(results["sides"].items()):
        style: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": "o" if number < len(COLOURS) else "s",
            "label": SIDES[name].label,
        }
        by_length = [mean(list(column)) for column in zip(*side["bits"], strict=True)]
        left.plot(_factors(side), by_length, **style)
        changes = [[bits - one[0] for bits in one] for one in side["bits"]]
        if max(mean(list(column)) for column in zip(*changes, strict=True)) < NEAR:
            right.plot(_factors(side), [mean(list(column)) for column in zip(*changes, strict=True)], **style)
            for one in changes:
                right.plot(_factors(side), one, ".", color=style["color"], alpha=0.4)
    factors = _factors(next(iter(results["sides"].values())))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(factors, [f"{factor} ×" for factor in factors])
        axis.set(xlabel="context length, in multiples of training's")
    left.set(ylabel="bits per byte")
    left.legend(fontsize="small", loc=(0.5, 0.16))
    right.set(ylabel="change in bits per byte")
    caption = (
        "Bits per byte by context length at evaluation. Right: the change since the length of training, with "
        f"each seed as a dot, of those that lose less than {NEAR:g} at every length."
    )
    return [Picture("extrapolation", caption, figure)]


EXPERIMENT = Experiment(
    name="extrapolation",
    claim="A Transformer-XL evaluated with a longer memory than in training gets better; other encodings do not.",
    measure=measure,
    tell=tell,
    draw=draw,
)
