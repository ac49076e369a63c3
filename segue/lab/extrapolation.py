"""Length extrapolation: bits per byte by the context length at evaluation.

Encodings that know distances are evaluated with a longer memory, absolute ones with a longer segment. Learned positions
are left out: their table ends. A clamp is chosen on the validation split, as in the published evaluations.
"""

from collections.abc import Sequence
from typing import NamedTuple

from segue.checkpoint import Bundle
from segue.config import Reach, Reading
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import fewer_bits, mean, plus_minus, seed_count
from segue.lab.trained import EvaluationMode, budget, recipe_for, score, scored_tokens, trained
from segue.lab.tuning import tuned


class Side(NamedTuple):
    """A positional encoding, how it is evaluated, and what is claimed about it."""

    label: str
    encoding: str
    claim: str
    gains: bool  # the claim is that a longer context helps
    clamped: bool = False


SIDES = {
    "xl": Side(
        "xl, no clamp",
        "xl",
        "Transformer-XL's encoding gains from a longer context than in training, without a clamp.",
        gains=True,
    ),
    "xl-clamp": Side(
        "xl, clamp",
        "xl",
        "Transformer-XL's encoding gains from a longer context than in training, with a clamp as published.",
        gains=True,
        clamped=True,
    ),
    "shaw": Side("Shaw", "shaw", "Shaw's relative positions get worse with it.", gains=False),
    "alibi": Side("ALiBi", "alibi", "ALiBi gains from a longer context than in training.", gains=True),
    "rotary": Side("rotary", "rotary", "Rotary positions get worse with it.", gains=False),
    "sinusoidal": Side(
        "sinusoids, isolated segments", "sinusoidal", "Absolute sinusoids get worse with it.", gains=False
    ),
}
LENGTH_FACTORS = (1, 2, 4, 8, 16)
"""The context lengths at evaluation, in multiples of the longest one in training."""

CLAMP_SHARES = (0.25, 0.5, 0.75, 1.0)
"""The clamps that are tried, as shares of the longest distance in training."""


def measure(setting: Setting) -> Results:
    sides = {name: _side(setting, side) for name, side in SIDES.items()}
    return {"sides": sides, "tokens": budget(setting).tokens, "scored": scored_tokens(setting)}


def _side(setting: Setting, side: Side) -> Results:
    segment, isolated = budget(setting).segment, side.encoding == "sinusoidal"
    longest = segment if isolated else 2 * segment  # the longest context in training
    lengths = [times * longest for times in LENGTH_FACTORS]
    recipe = recipe_for(setting, seed=setting.seed, encoding=side.encoding, memory=0 if isolated else segment)
    best = tuned(setting, recipe, side.encoding)
    bits, clamps = [], []
    for seed in setting.seeds:
        bundle = trained(setting, best.seeded(seed), f"{side.encoding}, seed {seed}")
        chosen = [_clamp(setting, bundle, length, longest) if side.clamped else None for length in lengths]
        modes = [
            _segments(length) if isolated else _memory(segment, length, clamp)
            for length, clamp in zip(lengths, chosen, strict=True)
        ]
        label = f"longer context, {side.label}"
        bits.append([score(setting, bundle, mode, label=label).bits_per_byte for mode in modes])
        clamps.append(chosen)
    return {**best.summary(), "trained": longest, "lengths": lengths, "bits": bits, "clamps": clamps}


def _clamp(setting: Setting, bundle: Bundle, length: int, longest: int) -> int:
    """The clamp with the lowest loss on the validation split."""

    def nats(clamp: int) -> float:
        mode = _memory(bundle.reading.segment, length, clamp)
        return score(setting, bundle, mode, split="valid", label=f"validation, clamp {clamp}").nats

    return min((int(share * (longest - 1)) for share in CLAMP_SHARES), key=nats)


def _memory(segment: int, length: int, clamp: int | None) -> EvaluationMode:
    """With a memory of that length, and as many keys for every token: the paper's evaluation."""
    reading = Reading(segment=segment, reach=Reach(memory=length, span=length, clamp=clamp))
    return EvaluationMode(f"memory {length}", reading, length)


def _segments(segment: int) -> EvaluationMode:
    """Isolated segments, longer than in training."""
    reading = Reading(segment=segment, reach=Reach(memory=0, positions="restart"))
    return EvaluationMode(f"segments of {segment}", reading, segment)


def gains(side: Results) -> tuple[list[float], list[float], int]:
    """Bits of each seed at the trained length and at the best longer length, and that length."""
    means = [mean([one[place] for one in side["bits"]]) for place in range(len(LENGTH_FACTORS))]
    best = min(range(1, len(LENGTH_FACTORS)), key=means.__getitem__)
    return [one[0] for one in side["bits"]], [one[best] for one in side["bits"]], side["lengths"][best]


def tell(results: Results) -> list[Block]:
    sides = results["sides"]
    return [
        "A model may be evaluated with a longer context than in training. Whether that helps depends on its "
        f"positional encoding. Each model here was trained on {results['tokens']:,} "
        f"tokens with the same budget, and then evaluated with up to {LENGTH_FACTORS[-1]} times the context "
        "length of training: encodings that know distances with a longer memory, the absolute one with longer "
        "segments, since its positions restart in each.",
        *([_chosen_clamps(sides["xl-clamp"])] if "xl-clamp" in sides else []),
        *(_verdict(SIDES[name], side) for name, side in sides.items()),
        Table(
            ["positions", *(f"{times} ×" for times in LENGTH_FACTORS)],
            [[SIDES[name].label, *_by_length(side)] for name, side in sides.items()],
            f"Bits per byte of {results['scored']:,} test tokens, by context length in multiples of training's: "
            + ", ".join(f"{side['trained']} for {SIDES[name].label}" for name, side in sides.items())
            + ".",
        ),
    ]


def _by_length(side: Results) -> list[str]:
    return [plus_minus([one[place] for one in side["bits"]]) for place in range(len(LENGTH_FACTORS))]


def _chosen_clamps(side: Results) -> str:
    by_length: list[Sequence[int]] = list(zip(*side["clamps"], strict=True))
    chosen = ", ".join(
        f"{'/'.join(map(str, sorted(set(clamps))))} at {length}"
        for length, clamps in zip(side["lengths"], by_length, strict=True)
    )
    return (
        "A clamp lets all distances beyond it count as that one; the published evaluations of Transformer-XL have one. "
        f"It is chosen on the validation split, for each seed and length: {chosen}."
    )


def _verdict(side: Side, results: Results) -> Verdict:
    before, after, length = gains(results)
    change = mean(after) - mean(before)
    because = (
        f"{plus_minus(before)} bits per byte at the {results['trained']} keys of training, {plus_minus(after)} at "
        f"{length}, the best longer length ({change:+.3f}); {seed_count(before)}"
    )
    return Verdict(
        side.claim, fewer_bits(after, before) if side.gains else fewer_bits(before, after), because
    )


def draw(results: Results) -> list[Picture]:
    figure, (axis,) = canvas()
    for name, side in results["sides"].items():
        lines = axis.plot(
            side["lengths"],
            [mean(list(column)) for column in zip(*side["bits"], strict=True)],
            "o-",
            label=SIDES[name].label,
        )
        for one in side["bits"]:
            axis.plot(side["lengths"], one, ".", color=lines[0].get_color(), alpha=0.4)
        axis.axvline(side["trained"], color=lines[0].get_color(), linestyle=":", alpha=0.6)
    axis.set_xscale("log", base=2)
    lengths = sorted({length for side in results["sides"].values() for length in side["lengths"]})
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.set(xlabel="context length in tokens", ylabel="bits per byte")
    axis.legend()
    return [
        Picture(
            "extrapolation",
            "Bits per byte by context length at evaluation; dotted lines: the longest context in training.",
            figure,
        )
    ]


EXPERIMENT = Experiment(
    name="extrapolation",
    claim="A Transformer-XL evaluated with a longer memory than in training gets better; other encodings do not.",
    measure=measure,
    tell=tell,
    draw=draw,
)
