"""Why positions must be relative: a memory whose places restart in every segment cannot be told from the segment.

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
from segue.lab.spread import MARGIN, fewer_bits, half_range, mean, said, with_seeds
from segue.lab.trained import budget, recipe_for, score, scored_tokens, trained
from segue.lab.tuning import tuned
from segue.recipe import Recipe

SIDES = {
    "xl": "relative (xl), with memory",
    "onward": "absolute, counting on over the seams, with memory",
    "confused": "absolute, restarting in every segment, with memory",
    "isolated": "absolute, restarting, without memory",
}


def measure(setting: Setting) -> Results:
    found: dict[str, list[Results]] = {side: [] for side in SIDES}
    best = {side: tuned(setting, _recipe(setting, side), name) for side, name in SIDES.items()}
    for seed in setting.seeds:
        for side, name in SIDES.items():
            bundle = trained(setting, best[side].seeded(seed), f"{name}, seed {seed}")
            bits = score(setting, bundle, told=side).bits_per_byte
            apart = None if side == "isolated" else told_apart(bundle)
            found[side].append({"seed": seed, "bits": bits, "told apart": apart})
    models = {side: one.told() for side, one in best.items()}
    return {
        "sides": found,
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
def told_apart(bundle: Bundle) -> float:
    """How unlike the weights of two keys are that stand at the same place, one in memory and one in the segment.

    All tokens are the same, so that places alone can tell them apart; in the first layer, where nothing else is mixed
    in yet. The mean of |log w - log w'| over heads and places, for the last query of the segment.
    """
    model, size = bundle.model, bundle.reading.segment
    tokens = torch.full((1, size), ord(" ") % model.config.vocab)
    reach = Reach(memory=size, positions=bundle.reading.reach.positions)
    _, memory = model(tokens, model.start(reach=reach))
    with recording(model) as seen:
        model(tokens, memory)
    weights = seen["blocks.0.attention"][0, :, -1]  # (H, S)
    least = torch.finfo(weights.dtype).tiny  # what a sharp head leaves to both keys may be nothing
    held, own = weights.clamp_min(least).log().unflatten(-1, (2, size)).unbind(dim=1)
    return float((held - own).abs().mean())


def tell(results: Results) -> list[Block]:
    bits = {side: [one["bits"] for one in found] for side, found in results["sides"].items()}
    apart = {side: [one["told apart"] for one in found] for side, found in results["sides"].items()}
    many = with_seeds(bits["xl"])
    saved = {side: mean(bits["isolated"]) - mean(bits[side]) for side in SIDES}
    return [
        "Recurrence alone is not enough. If places are absolute and restart in every segment, the first token "
        "of the memory and the first token of the segment carry the same mark, and a token that looks back "
        "cannot know which of the two came later. segue refuses to read like that, except here. All models "
        f"have the same shape and were trained on the same {results['trained']:,} tokens.",
        Verdict(
            "With places that restart, memory and segment cannot be told apart.",
            max(apart["confused"]) < 1e-3 < min(apart["xl"]),
            "a property of the positions, whatever the weights: given a text of blanks, the first layer's weights for "
            "the same place in memory and in the segment differ by a factor of "
            f"{_factor(apart['confused'])}; with relative positions by {_factor(apart['xl'])}; {many}",
        ),
        Verdict(
            "Relative positions make more of a memory than restarting ones.",
            fewer_bits(bits["xl"], bits["confused"]),
            f"{said(bits['xl'])} bits per byte against {said(bits['confused'])}; {many}",
        ),
        Verdict(
            "A memory with restarting places is of little use.",
            saved["xl"] > MARGIN and saved["confused"] < saved["xl"] / 2,
            f"against isolated segments ({said(bits['isolated'])}) it changes bits per byte by "
            f"{-saved['confused']:+.3f}, and a memory with relative positions by {-saved['xl']:+.3f}; {many}",
        ),
        Table(
            ["positions", "bits per byte", "same place told apart by"],
            [
                [SIDES[side], said(bits[side]), "–" if side == "isolated" else f"{_factor(apart[side])} ×"]
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
    return [Picture("confusion", "Bits per byte by how places are told; lower is better.", figure)]


EXPERIMENT = Experiment(
    name="confusion",
    claim="Memory needs relative positions: absolute ones that restart cannot tell the segments apart.",
    measure=measure,
    tell=tell,
    draw=draw,
)
