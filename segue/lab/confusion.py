"""Temporal confusion: with absolute positions that restart in every segment, memory and segment look the same.

Letters: T tokens in the segment, M states in memory, S = M + T keys, H heads.
"""

import math
from collections.abc import Sequence

import torch

from segue.checkpoint import Bundle
from segue.config import Reach
from segue.infer.trace import recording
from segue.lab.drawing import COLOURS, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import MARGIN, fewer_bits, half_range, mean, plus_minus, seed_count
from segue.lab.trained import budget, recipe_for, score, scored_tokens, trained
from segue.lab.tuning import tuned
from segue.recipe import Recipe

SIDES = {
    "xl": "relative (xl), with memory",
    "onward": "absolute, continued across segments, with memory",
    "confused": "absolute, restarting in every segment, with memory",
    "isolated": "absolute, restarting, without memory",
}


def measure(setting: Setting) -> Results:
    sides: dict[str, list[Results]] = {side: [] for side in SIDES}
    best = {side: tuned(setting, _recipe(setting, side), name) for side, name in SIDES.items()}
    for seed in setting.seeds:
        for side, name in SIDES.items():
            bundle = trained(setting, best[side].seeded(seed), f"{name}, seed {seed}")
            bits = score(setting, bundle, label=side).bits_per_byte
            difference = None if side == "isolated" else weight_difference(bundle)
            sides[side].append({"seed": seed, "bits": bits, "told apart": difference})
    models = {side: one.summary() for side, one in best.items()}
    return {
        "sides": sides,
        "models": models,
        "trained": budget(setting).tokens,
        "scored": scored_tokens(setting),
    }


def _recipe(setting: Setting, side: str) -> Recipe:
    if side == "xl":
        return recipe_for(setting, seed=setting.seed)
    memory = 0 if side == "isolated" else None
    positions = "restart" if side == "isolated" else side
    return recipe_for(setting, seed=setting.seed, encoding="sinusoidal", memory=memory, positions=positions)


@torch.no_grad()
def weight_difference(bundle: Bundle) -> float:
    """How much attention weights differ between two keys with the same position, one in memory, one in the segment.

    All tokens are equal, so only positions can make weights differ. Taken in the first layer, for the last query of the
    segment: the mean of |log w - log w'| over heads and positions.
    """
    model, size = bundle.model, bundle.reading.segment
    tokens = torch.full((1, size), ord(" ") % model.config.vocab)
    reach = Reach(memory=size, positions=bundle.reading.reach.positions)
    _, memory = model(tokens, model.start(reach=reach))
    with recording(model) as layers:
        model(tokens, memory)
    weights = layers["blocks.0.attention"][0, :, -1]  # (H, S)
    smallest = torch.finfo(weights.dtype).tiny  # both weights of a sharp head may be 0
    in_memory, in_segment = weights.clamp_min(smallest).log().unflatten(-1, (2, size)).unbind(dim=1)
    return float((in_memory - in_segment).abs().mean())


def tell(results: Results) -> list[Block]:
    bits = {side: [one["bits"] for one in seeds] for side, seeds in results["sides"].items()}
    apart = {side: [one["told apart"] for one in seeds] for side, seeds in results["sides"].items()}
    seeds = seed_count(bits["xl"])
    saved = {side: mean(bits["isolated"]) - mean(bits[side]) for side in SIDES}
    return [
        "Segment recurrence alone is not enough. If positions are absolute and restart in every segment, the first "
        "token of the memory and the first token of the segment have the same positional encoding, and a query "
        "cannot know which of the two came later. segue refuses such a reading, except here. All models "
        f"have the same shape and were trained on the same {results['trained']:,} tokens.",
        Verdict(
            "With positions that restart, the first layer's attention cannot distinguish memory from segment.",
            max(apart["confused"]) < 1e-3 < min(apart["xl"]),
            "a property of the positions, whatever the weights: on a text of blanks, its "
            "weights at the same position in memory and in the segment differ by a factor of "
            f"{_factor(apart['confused'])}; with relative positions by {_factor(apart['xl'])}; {seeds}",
        ),
        Verdict(
            "With a memory, relative positions are better than restarting ones.",
            fewer_bits(bits["xl"], bits["confused"]),
            f"{plus_minus(bits['xl'])} bits per byte against {plus_minus(bits['confused'])}; {seeds}",
        ),
        "Being able to tell them apart is not enough either: absolute positions that continue across segments differ "
        f"by a factor of {_factor(apart['onward'])}, and need {plus_minus(bits['onward'])} bits per byte. They grow "
        "with the text, so that training sees each of them only a few times. What relative positions add is that "
        "the same distance looks the same everywhere.",
        Verdict(
            "A memory with restarting positions is of little use.",
            saved["xl"] > MARGIN and saved["confused"] < saved["xl"] / 2,
            f"compared with isolated segments ({plus_minus(bits['isolated'])}) it changes bits per byte by "
            f"{-saved['confused']:+.3f}, and a memory with relative positions by {-saved['xl']:+.3f}, to which the "
            f"other positions contribute as well as the memory (fragmentation tells them apart); {seeds}",
        ),
        Table(
            ["positions", "bits per byte", "weights differ by a factor of"],
            [
                [
                    SIDES[side],
                    plus_minus(bits[side]),
                    "–" if side == "isolated" else f"{_factor(apart[side])} ×",
                ]
                for side in SIDES
            ],
            f"{results['scored']:,} test tokens; mean ± half the range of seeds.",
        ),
    ]


def _factor(logs: Sequence[float]) -> str:
    factor = math.exp(mean(logs))
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.3f}"


def draw(results: Results) -> list[Picture]:
    figure, (axis,) = canvas(height=2.6)
    places = list(range(len(SIDES)))[::-1]
    for place, (side, colour) in zip(places, zip(SIDES, COLOURS, strict=False), strict=True):
        bits = [one["bits"] for one in results["sides"][side]]
        axis.errorbar(mean(bits), place, xerr=half_range(bits), fmt="o", capsize=3, color=colour)
    axis.set(xlabel="bits per byte", yticks=places, yticklabels=list(SIDES.values()))
    return [Picture("confusion", "Bits per byte by positional encoding; lower is better.", figure)]


EXPERIMENT = Experiment(
    name="confusion",
    claim="Memory needs relative positions: absolute ones that restart make the segments indistinguishable.",
    measure=measure,
    tell=tell,
    draw=draw,
)
