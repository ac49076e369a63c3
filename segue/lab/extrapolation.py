"""Length extrapolation: bits per byte by the context length at evaluation.

Relative encodings are evaluated with a longer memory, absolute ones with a longer segment. Learned positions are left
out: their table ends.
"""

from segue.config import ENCODINGS, Reach, Reading
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import fewer_bits, mean, plus_minus, seed_count
from segue.lab.trained import EvaluationMode, budget, recipe_for, score, scored_tokens, trained, with_memory
from segue.lab.tuning import tuned

SIDES = {
    "xl": "xl, trained with memory",
    "shaw": "Shaw, trained with memory",
    "sinusoidal": "sinusoids, isolated segments",
}
CLAIMS = {"shaw": "Shaw's relative positions", "sinusoidal": "Absolute sinusoids"}
LENGTH_FACTORS = (1, 2, 4, 8, 16)
"""The context lengths at evaluation, in multiples of the longest one in training."""


def measure(setting: Setting) -> Results:
    sides = {encoding: _side(setting, encoding) for encoding in SIDES}
    return {"sides": sides, "tokens": budget(setting).tokens, "scored": scored_tokens(setting)}


def _side(setting: Setting, encoding: str) -> Results:
    segment, relative = budget(setting).segment, ENCODINGS[encoding].relative
    longest = 2 * segment if relative else segment  # the longest context in training
    bits = []
    recipe = recipe_for(setting, seed=setting.seed, encoding=encoding, memory=segment if relative else 0)
    best = tuned(setting, recipe, SIDES[encoding])
    for seed in setting.seeds:
        bundle = trained(setting, best.seeded(seed), f"{SIDES[encoding]}, seed {seed}")
        modes = [
            with_memory(bundle, times * longest) if relative else _longer(times * longest)
            for times in LENGTH_FACTORS
        ]
        label = f"longer context, {encoding}"
        bits.append([score(setting, bundle, mode, label=label).bits_per_byte for mode in modes])
    return {
        **best.summary(),
        "trained": longest,
        "lengths": [times * longest for times in LENGTH_FACTORS],
        "bits": bits,
    }


def _longer(segment: int) -> EvaluationMode:
    """Isolated segments, longer than in training."""
    reading = Reading(segment=segment, reach=Reach(memory=0, positions="restart"))
    return EvaluationMode(f"segments of {segment}", reading, segment)


def gains(side: Results) -> tuple[list[float], list[float], int]:
    """Bits of each seed at the trained length and at the best longer length, and that length."""
    means = [mean([one[place] for one in side["bits"]]) for place in range(len(LENGTH_FACTORS))]
    best = min(range(1, len(LENGTH_FACTORS)), key=means.__getitem__)
    return [one[0] for one in side["bits"]], [one[best] for one in side["bits"]], side["lengths"][best]


def tell(results: Results) -> list[Block]:
    return [
        "A model may be evaluated with a longer context than in training. Whether that helps depends on its "
        f"positional encoding. Each model here was trained on {results['tokens']:,} "
        f"tokens with the same budget, and then evaluated with up to {LENGTH_FACTORS[-1]} times the context "
        "length of training: relative encodings with a longer memory, the absolute one with longer "
        "segments, since its positions restart in each.",
        *(_verdict(encoding, side) for encoding, side in results["sides"].items()),
        Table(
            ["positions", *(f"{times} ×" for times in LENGTH_FACTORS)],
            [
                [
                    SIDES[encoding],
                    *(
                        plus_minus([one[place] for one in side["bits"]])
                        for place in range(len(LENGTH_FACTORS))
                    ),
                ]
                for encoding, side in results["sides"].items()
            ],
            f"Bits per byte of {results['scored']:,} test tokens, by context length in multiples of training's: "
            + ", ".join(f"{side['trained']} for {encoding}" for encoding, side in results["sides"].items())
            + ".",
        ),
    ]


def _verdict(encoding: str, side: Results) -> Verdict:
    before, after, length = gains(side)
    change = mean(after) - mean(before)
    because = (
        f"{plus_minus(before)} bits per byte at the {side['trained']} keys of training, {plus_minus(after)} at "
        f"{length}, the best longer length ({change:+.3f}); {seed_count(before)}"
    )
    if encoding == "xl":
        claim = "Transformer-XL's encoding gains from a longer context than in training."
        return Verdict(claim, fewer_bits(after, before), because)
    return Verdict(f"{CLAIMS[encoding]} get worse with it.", fewer_bits(before, after), because)


def draw(results: Results) -> list[Picture]:
    figure, (axis,) = canvas()
    for encoding, side in results["sides"].items():
        lines = axis.plot(
            side["lengths"],
            [mean(list(column)) for column in zip(*side["bits"], strict=True)],
            "o-",
            label=SIDES[encoding],
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
