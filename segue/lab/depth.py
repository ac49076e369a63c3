"""Fixed depth: products of permutations, by the number of layers and by the number of steps of one block.

A sequence of generators of a group is read; at every place the product so far is predicted. A recurrent state can
follow it for ever. A Transformer of N layers combines what it reads N times, whatever its memory, so that it should
follow up to a length that grows with its depth. S5 is not solvable; S3 and Z2 are: shortcuts of constant depth exist.
With adaptive steps (ACT), each token chooses how often the block is applied to it.
Letters: B lanes, T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, permutations
from typing import Literal

import torch
from torch import Tensor

from segue.config import LanguageConfig, Reach, RecurrentConfig, UniversalConfig, XLConfig
from segue.footprint import parameters
from segue.lab.cache import cached
from segue.lab.drawing import COLOURS, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import always_lower, mean, plus_minus, seed_count
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.halting import Pondering, ponder_cost
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.nn.universal import UniversalTransformer

Permutation = tuple[int, ...]

GENERATORS: dict[str, tuple[Permutation, ...]] = {
    "Z2": ((0, 1), (1, 0)),
    "S3": ((0, 1, 2), (1, 0, 2), (1, 2, 0)),
    "S5": ((0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (1, 2, 3, 4, 0), (0, 2, 1, 3, 4)),
}
"""Groups by what their sequences are made of: the identity, and permutations that generate the group."""

LANES, WIDTH, SEGMENT, RIGHT = 64, 64, 8, 0.9
MORE_STEPS = 0.1
"""Mean steps: a smaller difference does not count."""
LENGTHS = {True: 16, False: 32}  # quick, full
STEPS = {True: 60, False: 1500}
PONDER = 0.001
"""The weight of the ponder cost, where tokens choose their steps: so small that more steps pay if they help."""


@dataclass(frozen=True)
class ModelSetup:
    """A model's config, and the tokens that it reads at a time (0: all) with memory of all before."""

    config: LanguageConfig
    depth: int  # times that what was read can be combined, at most; 0: as often as tokens are read
    segment: int = 0


def _layers(count: int, *, segment: int = 0) -> ModelSetup:
    config = XLConfig(vocab=128, width=WIDTH, layers=count, heads=4)
    return ModelSetup(config, count, segment)


def _steps(count: int, halting: Literal["none", "act"] = "none") -> ModelSetup:
    config = UniversalConfig(vocab=128, width=WIDTH, heads=4, steps=count, halting=halting)
    return ModelSetup(config, count)


MODELS = {
    "LSTM": ModelSetup(RecurrentConfig(vocab=128, width=WIDTH, layers=1), 0),
    "1 layer": _layers(1),
    "2 layers": _layers(2),
    "4 layers": _layers(4),
    "2 layers, memory": _layers(2, segment=SEGMENT),
    "one block, 2 steps": _steps(2),
    "one block, 4 steps": _steps(4),
    "one block, 8 steps": _steps(8),
    "one block, adaptive steps": _steps(8, "act"),
}
"""All models; their vocabulary holds the 120 elements of S5."""

ADAPTIVE = "one block, adaptive steps"

CONTROLS = ("LSTM", "1 layer", "2 layers", "4 layers")
"""What reads the solvable groups in the full version; S5 is read by all models."""

QUICK = {"Z2": ("LSTM", "1 layer", "2 layers"), "S5": ("LSTM", "1 layer", "2 layers")}
FULL = {"Z2": CONTROLS, "S3": CONTROLS, "S5": tuple(MODELS)}
"""The groups, and the models that read each."""


@cache
def table(group: str) -> Tensor:
    """(elements, generators) The number of each element's product with each generator; element 0 is the identity."""
    elements = sorted(permutations(range(len(GENERATORS[group][0]))))
    numbers = {element: number for number, element in enumerate(elements)}
    products = [
        [numbers[tuple(element[place] for place in generator)] for generator in GENERATORS[group]]
        for element in elements
    ]
    return torch.tensor(products)


def sequences(group: str, lanes: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """(B, T) Random generators, and the number of the product of each with all before it."""
    products = table(group)
    tokens = torch.randint(products.size(1), (lanes, length), generator=draw)
    state, states = torch.zeros(lanes, dtype=torch.int64), []
    for column in tokens.T:
        state = products[state, column]
        states.append(state)
    return tokens, torch.stack(states, dim=1)


def read(setup: ModelSetup, model: LanguageModel, tokens: Tensor) -> tuple[Tensor, Pondering | None]:
    """(B, T, C) Hidden states, read in segments if the setup says so; and the steps that tokens chose, if they do."""
    reach = Reach(memory=tokens.size(1) if setup.segment else 1 if setup.depth == 0 else 0)
    memory, hidden = model.start(lanes=len(tokens), reach=reach), []
    if isinstance(model, UniversalTransformer) and model.config.halts:
        states, _, pondering = model.pondered(tokens, memory)
        return states, pondering
    for piece in tokens.split(setup.segment or tokens.size(1), dim=1):
        states, memory = model(piece, memory)
        hidden.append(states)
    return torch.cat(hidden, dim=1), None


def measure(setting: Setting) -> Results:
    groups = QUICK if setting.quick else FULL
    length, steps = LENGTHS[setting.quick], STEPS[setting.quick]
    learned = {
        group: {
            name: [_learned(setting, name, group, length, steps, seed) for seed in setting.seeds]
            for name in names
        }
        for group, names in groups.items()
    }
    names = groups["S5"]
    return {
        "length": length,
        "steps": steps,
        "lanes": LANES,
        "elements": {group: len(table(group)) for group in groups},
        "parameters": {name: parameters(MODELS[name].config) for name in names},
        "depths": {name: MODELS[name].depth for name in names},
        "right": {
            group: {name: [one["right"] for one in seeds] for name, seeds in models.items()}
            for group, models in learned.items()
        },
        "chosen": [one["steps"] for one in learned["S5"].get(ADAPTIVE, [])],
    }


def _learned(setting: Setting, name: str, group: str, length: int, steps: int, seed: int) -> Results:
    """One trained model's accuracy at each place, and the mean number of steps that tokens chose there, if they do."""
    inputs = {"model": name, "group": group, "length": length, "steps": steps, "seed": seed}
    label = f"{name} on {group}, seed {seed}"
    return dict(
        cached(
            setting,
            __name__,
            inputs,
            lambda: _trained(setting, MODELS[name], group, length, steps, seed, label),
        )
    )


def _trained(
    setting: Setting, setup: ModelSetup, group: str, length: int, steps: int, seed: int, label: str
) -> Results:
    torch.manual_seed(seed)
    model, draw = build_language_model(setup.config), torch.Generator().manual_seed(seed)

    def loss(_step: int) -> Tensor:
        tokens, products = sequences(group, LANES, length, draw)
        hidden, pondering = read(setup, model, tokens)
        nats = model.nats(hidden, products).mean()
        return nats if pondering is None else nats + PONDER * ponder_cost(pondering)

    optimize(model, short_schedule(steps, 1e-2), loss, label=label, report=setting.report)
    return scored(setup, model.eval(), group, length)


@torch.no_grad()
def scored(setup: ModelSetup, model: LanguageModel, group: str, length: int) -> Results:
    """The share of right products at each place, on sequences that are the same for all; and the steps chosen there."""
    tokens, products = sequences(group, 256, length, torch.Generator().manual_seed(1_000_003))
    hidden, pondering = read(setup, model, tokens)
    likeliest = model.logprobs(hidden).argmax(dim=-1)
    return {
        "right": (likeliest == products).double().mean(dim=0).tolist(),
        "steps": [] if pondering is None else pondering.steps.double().mean(dim=0).tolist(),
    }


def followed(shares: Sequence[float]) -> int:
    """The number of places at which a share of at least `RIGHT` of the answers is right."""
    return sum(share >= RIGHT for share in shares)


def second_at_most(group: str) -> float:
    """The share of second answers that relative attention can have right, if nothing marks the beginning.

    Weights sum to 1, so after `x x` it returns what it returned after `x`: wrong, unless x·x = x.
    """
    generators = GENERATORS[group]
    unlike = sum(tuple(one[place] for place in one) != one for one in generators)
    return 1 - unlike / len(generators) ** 2


def tell(results: Results) -> list[Block]:
    right = results["right"]
    hard = {name: [followed(one) for one in seeds] for name, seeds in right["S5"].items()}
    layers = [name for name in hard if name.endswith(("layer", "layers"))]
    lengths = ", ".join(f"{name} {plus_minus(values, 0)}" for name, values in hard.items())
    blocks: list[Block] = [
        "A model reads permutations and says their product at every place. Each is trained on sequences of "
        f"{results['length']} tokens, for {results['steps']} steps of {results['lanes']} sequences, and followed at "
        f"those places where {100 * RIGHT:.0f} % of its answers are right. No theorem says where training "
        "ends; it says that fixed depth cannot follow S5 for ever (if TC0 is not NC1), and that memory adds no depth.",
        _second_place(right["S5"]),
        *_solvable(results),
        Verdict(
            "A recurrent state follows products of S5 to the end.",
            min(hard["LSTM"]) == results["length"],
            f"places of {results['length']} that are followed: {lengths}",
        ),
        Verdict(
            "A Transformer follows them farther with more layers, and not to the end.",
            _farther(hard, layers) and max(hard[layers[-1]]) < results["length"],
            ", ".join(f"{name}: {plus_minus(hard[name], 0)}" for name in layers),
        ),
    ]
    return [*blocks, *_further_verdicts(hard, results), _table(results, hard)]


def _farther(hard: Mapping[str, Sequence[int]], names: Sequence[str]) -> bool:
    """Whether every seed of each model follows farther than all seeds of the model before it."""
    return all(max(hard[one]) < min(hard[other]) for one, other in pairwise(names))


def _second_place(models: Mapping[str, Sequence[Sequence[float]]]) -> str:
    shares = [seed[1] for name, seeds in models.items() if name != "LSTM" for seed in seeds]
    return (
        "Nothing marks where a sequence begins, so attention, whose weights sum to 1, cannot tell “x x” from “x”: "
        f"of the second answers it can have {second_at_most('S5'):.2f} right (arithmetic), and the best "
        f"Transformer has {max(shares):.2f}. Other tokens beside them mark the places that follow."
    )


def _solvable(results: Results) -> Iterator[str]:
    """Whether training, not depth, ends what the deepest model follows of groups that depth does not limit."""
    for group, models in results["right"].items():
        deepest = [name for name in models if name.endswith(("layer", "layers"))][-1]
        reached = [followed(one) for one in models[deepest]]
        if group != "S5" and max(reached) < results["length"]:
            yield (
                f"{group} is a control, a solvable group: no theorem keeps fixed depth from following it to the end. "
                f"After this training {deepest} follow {plus_minus(reached, 0)} of {results['length']} places, so "
                "learning ends what a Transformer follows here, and not depth alone."
            )


def _further_verdicts(hard: Mapping[str, Sequence[int]], results: Results) -> Iterator[Verdict]:
    if "2 layers, memory" in hard:
        yield Verdict(
            "Memory does not replace depth: read with memory, two layers follow no farther than two layers.",
            min(hard["2 layers"]) > 1 and mean(hard["2 layers, memory"]) <= mean(hard["2 layers"]) + 1,
            f"with memory {plus_minus(hard['2 layers, memory'], 0)}, "
            f"at once {plus_minus(hard['2 layers'], 0)}",
        )
    steps = [name for name in hard if name.startswith("one block") and name != ADAPTIVE]
    if steps:
        yield Verdict(
            "One block that is applied more often follows farther, with the same parameters.",
            _farther(hard, steps),
            ", ".join(f"{name}: {plus_minus(hard[name], 0)}" for name in steps),
        )
    if ADAPTIVE in hard:
        yield from _adaptive_verdicts(hard, results)


def _adaptive_verdicts(hard: Mapping[str, Sequence[int]], results: Results) -> Iterator[Verdict]:
    deepest = f"one block, {results['depths'][ADAPTIVE]} steps"
    yield Verdict(
        "With adaptive steps, a block follows as far as with all of its steps.",
        min(hard[deepest]) > 1 and mean(hard[ADAPTIVE]) >= mean(hard[deepest]) - 1,
        f"adaptive, {plus_minus([mean(places) for places in results['chosen']], 2)} steps on average: "
        f"{plus_minus(hard[ADAPTIVE], 0)}, {deepest}: {plus_minus(hard[deepest], 0)}",
    )
    quarter = results["length"] // 4
    begin = [mean(places[:quarter]) for places in results["chosen"]]
    end = [mean(places[-quarter:]) for places in results["chosen"]]
    yield Verdict(
        "Tokens halt sooner where the product is of fewer permutations.",
        always_lower(begin, end) and mean(end) - mean(begin) > MORE_STEPS,
        f"mean steps in the first quarter of the places {plus_minus(begin, 2)}, in the last {plus_minus(end, 2)}; "
        f"{seed_count(begin)} (shown if more with all of them, and by more than {MORE_STEPS:g})",
    )


def _table(results: Results, hard: Mapping[str, Sequence[int]]) -> Table:
    right, depths = results["right"], results["depths"]
    rows = [
        [
            name,
            _depth_text(depths[name], adaptive=name == ADAPTIVE),
            *(
                plus_minus([followed(one) for one in right[group][name]], 0) if name in right[group] else "–"
                for group in right
            ),
            f"{results['parameters'][name]:,}",
        ]
        for name in hard
    ]
    heads = [f"{group} ({results['elements'][group]} elements)" for group in right]
    caption = (
        f"Places of {results['length']} where {100 * RIGHT:.0f} % of the answers are right; "
        "mean ± half the range of seeds."
    )
    return Table(["model", "depth", *heads, "parameters"], rows, caption)


def _depth_text(depth: int, *, adaptive: bool) -> str:
    return f"{'up to ' if adaptive else ''}{depth}" if depth else "every token"


def draw(results: Results) -> list[Picture]:
    groups, names = list(results["right"]), list(results["depths"])
    figure, axes = canvas(1, len(groups), width=4 * len(groups) + 1, height=3.6)
    places = range(1, results["length"] + 1)
    for axis, group in zip(axes, groups, strict=True):
        for name, seeds in results["right"][group].items():
            shares = [mean(column) for column in zip(*seeds, strict=True)]
            colour = COLOURS[names.index(name) % len(COLOURS)]
            style = "--" if "memory" in name else ":" if name.startswith("one block") else "-"
            axis.plot(places, shares, style, c=colour, label=name)
        axis.axhline(1 / results["elements"][group], color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=group, xlabel="place", ylim=(-0.05, 1.05), ylabel="accuracy")
    # the last group, S5, is read by all models
    axes[-1].legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.02, 1))
    return [Picture("depth", "Accuracy of the product at each place; the dotted line is chance.", figure)]


EXPERIMENT = Experiment(
    name="depth",
    claim="A Transformer of fixed depth cannot follow sequential computations of any length; memory does not help.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
