"""How much context architectures use: relative effective context length (RECL) as published, and by mean gains.

Models of one size are trained once each; what is uncertain is told by bootstrap over the test text. A RECL belongs to
its group, whose best model at every position is the baseline. Letters: P positions, L context lengths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from segue.checkpoint import load
from segue.infer.evaluate import evaluate
from segue.lab import context_losses as reading
from segue.lab.architectures import TRANSFORMERS, Architecture, architecture_recipe, architecture_run
from segue.lab.cache import cached
from segue.lab.context_lengths import (
    Estimate,
    Losses,
    estimate,
    hard_positions,
    mean_length,
    paper_gains,
    paper_length,
    resampled,
)
from segue.lab.experiment import Experiment, Results, Setting
from segue.lab.recl_page import CONTROL, DEFINITIONS, GROUPS, draw, tell
from segue.lab.trained import Budget, scored_tokens, training_seconds
from segue.lab.tuning import tuned
from segue.recipe import Recipe

SHARES = (0.1, 0.5, 1.0)
TRIES = ({"optimizer": "muon", "learning_rate": 1e-2}, {"optimizer": "muon", "learning_rate": 2e-2})
"""What every model tries for an eighth of the steps. (At four settings, each model's best was Muon at 0.01.)"""


@dataclass(frozen=True)
class Sizes:
    """The budget of every model, the longest context, and the positions: `blocks` blocks of `size`."""

    budget: Budget
    longest: int
    blocks: int
    size: int
    resamples: int


QUICK = Sizes(
    Budget(width=48, layers=2, heads=2, lanes=8, segment=32, steps=80),
    longest=128,
    blocks=24,
    size=16,
    resamples=40,
)
FULL = Sizes(
    Budget(width=128, layers=4, heads=4, lanes=16, segment=128, steps=600),
    longest=1024,
    blocks=128,
    size=64,
    resamples=200,
)


def measure(setting: Setting) -> Results:
    sizes = QUICK if setting.quick else FULL
    contexts = reading.ladder(sizes.longest)
    names = list(dict.fromkeys(name for group in GROUPS.values() for name in group))
    stream = setting.stream("test")  # a text that is too short is refused before anything is trained
    blocks = reading.choose_blocks(stream, sizes.blocks, sizes.size, contexts[-1], setting.seed)
    models, losses = {}, dict[str, Tensor]()
    for name in names:
        tuning = tuned(setting, recipe_of(setting, name, sizes.budget), name, tries=TRIES, divisor=8)
        architecture = Architecture(name, tuning)
        run = architecture_run(setting, architecture, setting.seed)
        models[name], losses[name] = _read(setting, architecture, run, blocks, contexts, None)
        if name == "Transformer-XL":
            _, losses[CONTROL] = _read(setting, architecture, run, blocks, contexts, contexts[0])
    texts = resampled(len(blocks), blocks.size(1), sizes.resamples, setting.seed)
    return {
        "contexts": list(contexts),
        "shares": list(SHARES),
        "positions": blocks.numel(),
        "blocks": len(blocks),
        "resamples": sizes.resamples,
        "tokens": sizes.budget.tokens,
        "segment": sizes.budget.segment,
        "scored": scored_tokens(setting),
        "models": models,
        "curves": {name: curve(nats, texts) for name, nats in losses.items()},
        "groups": {
            label: group_lengths(
                losses, group, texts, contexts, partial(setting.report, f"resampling, {label}")
            )
            for label, group in GROUPS.items()
        },
    }


def recipe_of(setting: Setting, name: str, size: Budget) -> Recipe:
    """All have the same attention length in training: isolated segments are as long as segment and memory together."""
    if TRANSFORMERS.get(name, {}).get("memory") == 0:
        size = replace(size, segment=2 * size.segment, lanes=size.lanes // 2)
    return architecture_recipe(setting, name, size)


def _read(
    setting: Setting,
    architecture: Architecture,
    run: Path,
    blocks: Tensor,
    contexts: Sequence[int],
    foreign: int | None,
) -> tuple[Results, Tensor]:
    """What is told of a trained model, and its losses (L, P)."""
    recipe, stream, name = architecture.tuning.recipe, setting.stream("test"), architecture.name
    reach, most = reading.reach_of(recipe), reading.ceiling(recipe)
    label = f"{name}, foreign text" if foreign else name

    def made() -> Results:
        bundle = load(run)
        table: dict[int, list[float]] = {}
        for context in (min(context, most or context) for context in contexts):
            if context not in table:
                nats = reading.context_losses(
                    bundle.model,
                    reach,
                    stream,
                    blocks,
                    context,
                    foreign=foreign,
                    seed=setting.seed,
                    report=lambda task, done, total: setting.report(f"{label}: {task}", done, total),
                )
                table[context] = [round(value, 5) for value in nats.tolist()]
        return {"nats": [table[min(context, most or context)] for context in contexts]}

    inputs = {
        "run": run.name,
        "contexts": list(contexts),
        "blocks": [*blocks.shape, contexts[-1], setting.seed],
        "reach": reach.model_dump(mode="json"),
        "foreign": foreign,
    }
    values = cached(setting, reading.__name__, inputs, made)
    facts = {
        **architecture.summary(),
        "ceiling": most,
        "segment": recipe.train.segment,
        "bits": _bits(setting, run),
        "seconds": training_seconds(run),
    }
    return facts, torch.tensor(values["nats"], dtype=torch.float64)


def _bits(setting: Setting, run: Path) -> float:
    """Bits per byte of the test split, read as in training."""
    limit = scored_tokens(setting)

    def made() -> float:
        bundle = load(run)
        return evaluate(bundle.model, setting.stream("test"), bundle.reading, limit=limit).bits_per_byte

    return float(cached(setting, evaluate.__module__, {"run": run.name, "scored": limit}, made))


def curve(nats: Tensor, texts: Tensor) -> Results:
    """Mean nats by context length, and the mean gain in perplexity of every step with its interval."""
    means = nats.mean(dim=1)
    others = torch.stack([nats[:, text].mean(dim=1) for text in texts])  # (resamples, L)
    gains = 1 - means.diff().exp()
    resampled_gains = 1 - others.diff(dim=1).exp()
    return {
        "nats": [round(value, 5) for value in means.tolist()],
        "gains": [
            [round(value, 5) for value in estimate(float(gain), column.tolist())]
            for gain, column in zip(gains, resampled_gains.T, strict=True)
        ],
    }


def group_lengths(
    losses: Losses,
    group: Sequence[str],
    texts: Tensor,
    contexts: Sequence[int],
    report: Callable[[int, int], None],
) -> Results:
    """The lengths of a group's models and of the control by both definitions, on the text and on resampled ones."""
    names = [*group, CONTROL]
    whole = _lengths({name: losses[name] for name in names}, group, contexts)
    others = []
    for number, text in enumerate(texts):
        some = {name: losses[name][:, text] for name in names}
        others.append(_lengths(some, group, contexts))
        report(number + 1, len(texts))
    lengths = {
        name: {
            how: [_estimate(whole, others, how, name, place) for place in range(len(SHARES))]
            for how in DEFINITIONS
        }
        for name in names
    }
    first = group[0]
    longer = {
        name: {
            how: [
                sum(one[how][first][place] > one[how][name][place] for one in others) / len(others)
                for place in range(len(SHARES))
            ]
            for how in DEFINITIONS
        }
        for name in names[1:]
    }
    gains = {
        name: [round(value, 5) for value in paper_gains(losses, group, name, SHARES[0])] for name in names
    }
    return {"lengths": lengths, "longer": longer, "gains": gains}


Lengths = Mapping[str, Mapping[str, Sequence[int]]]
"""By definition, model and share."""


def _lengths(losses: Losses, group: Sequence[str], contexts: Sequence[int]) -> Lengths:
    hard = [hard_positions(losses, group, share) for share in SHARES]
    return {
        "paper": {
            name: [paper_length(losses, group, name, share, contexts) for share in SHARES] for name in losses
        },
        "mean": {
            name: [mean_length(nats[:, positions].mean(dim=1), contexts) for positions in hard]
            for name, nats in losses.items()
        },
    }


def _estimate(whole: Lengths, others: Sequence[Lengths], how: str, name: str, place: int) -> Estimate:
    return estimate(whole[how][name][place], [one[how][name][place] for one in others])


EXPERIMENT = Experiment(
    name="recl",
    claim="Transformer-XL uses a much longer context than recurrent networks and vanilla Transformers.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
