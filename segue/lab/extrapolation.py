"""Reading farther than in training: bits per byte against how far a token can see.

Relative encodings read with a longer memory, absolute ones with a longer segment. Learned tables of places end.
"""

from segue.config import ENCODINGS, Reach, Reading
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.spread import fewer_bits, mean, said, with_seeds
from segue.lab.trained import Way, budget, recipe_for, remembering, score, scored_tokens, trained
from segue.lab.tuning import tuned

SIDES = {
    "xl": "xl, trained with memory",
    "shaw": "Shaw, trained with memory",
    "sinusoidal": "sinusoids, isolated segments",
}
CLAIMS = {"shaw": "Shaw's positions", "sinusoidal": "Sinusoids of absolute places"}
TIMES = (1, 2, 4, 8, 16)
"""The lengths that are read, in lengths seen in training."""


def measure(setting: Setting) -> Results:
    sides = {encoding: _side(setting, encoding) for encoding in SIDES}
    return {"sides": sides, "tokens": budget(setting).tokens, "scored": scored_tokens(setting)}


def _side(setting: Setting, encoding: str) -> Results:
    segment, relative = budget(setting).segment, ENCODINGS[encoding].relative
    seen = 2 * segment if relative else segment  # the most that a token saw in training
    found = []
    recipe = recipe_for(setting, seed=setting.seed, encoding=encoding, memory=segment if relative else 0)
    best = tuned(setting, recipe, SIDES[encoding])
    for seed in setting.seeds:
        bundle = trained(setting, best.seeded(seed), f"{SIDES[encoding]}, seed {seed}")
        ways = [remembering(bundle, times * seen) if relative else _longer(times * seen) for times in TIMES]
        told = f"farther, {encoding}"
        found.append([score(setting, bundle, way, told=told).bits_per_byte for way in ways])
    return {**best.told(), "trained": seen, "lengths": [times * seen for times in TIMES], "bits": found}


def _longer(segment: int) -> Way:
    """Isolated segments longer than those of training."""
    reading = Reading(segment=segment, reach=Reach(memory=0, positions="restart"))
    return Way(f"segments of {segment}", reading, segment)


def gains(side: Results) -> tuple[list[float], list[float], int]:
    """For each seed the bits at the trained length, those at the best longer one, and which that is."""
    means = [mean([one[place] for one in side["bits"]]) for place in range(len(TIMES))]
    best = min(range(1, len(TIMES)), key=means.__getitem__)
    return [one[0] for one in side["bits"]], [one[best] for one in side["bits"]], side["lengths"][best]


def tell(results: Results) -> list[Block]:
    return [
        "A model that was trained to see so many tokens may be asked to see more. What it makes of distances "
        f"that it never met depends on how it knows them. Each model here was trained on {results['tokens']:,} "
        f"tokens with the same budget, and then read the same text with up to {TIMES[-1]} times the length "
        "that it saw in training: the relative ones with a longer memory, the absolute one with longer "
        "segments, since its places restart there.",
        *(_verdict(encoding, side) for encoding, side in results["sides"].items()),
        Table(
            ["positions", *(f"{times} ×" for times in TIMES)],
            [
                [
                    SIDES[encoding],
                    *(said([one[place] for one in side["bits"]]) for place in range(len(TIMES))),
                ]
                for encoding, side in results["sides"].items()
            ],
            f"Bits per byte of {results['scored']:,} test tokens, by the length read in lengths of training: "
            + ", ".join(f"{side['trained']} for {encoding}" for encoding, side in results["sides"].items())
            + ".",
        ),
    ]


def _verdict(encoding: str, side: Results) -> Verdict:
    before, after, length = gains(side)
    change = mean(after) - mean(before)
    because = (
        f"{said(before)} bits per byte at the {side['trained']} keys of training, {said(after)} at {length}, "
        f"the best beyond them ({change:+.3f}); {with_seeds(before)}"
    )
    if encoding == "xl":
        claim = "The positions of Transformer-XL gain from reading farther than in training."
        return Verdict(claim, fewer_bits(after, before), because)
    return Verdict(f"{CLAIMS[encoding]} get worse from it.", fewer_bits(before, after), because)


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
    axis.set(xlabel="tokens that can be seen", ylabel="bits per byte")
    axis.legend()
    return [
        Picture(
            "extrapolation",
            "Bits per byte by the length that is read; dotted: the most seen in training.",
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
