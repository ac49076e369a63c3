"""The context that groups of models use: their losses by context length, and the lengths that follow from them.

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
from segue.lab.architectures import Architecture, architecture_run
from segue.lab.cache import cached
from segue.lab.context_lengths import (
    DEFINITIONS,
    Estimate,
    Losses,
    estimate,
    hard_positions,
    mean_length,
    paper_gains,
    paper_length,
    resampled,
)
from segue.lab.experiment import Results, Setting
from segue.lab.trained import Budget, scored_tokens, training_seconds
from segue.lab.tuning import Unit, changed, tuned
from segue.recipe import Recipe

SHARES = (0.1, 0.5, 1.0)
OWN = (16, 64, 256)
"""Tokens of their own text that the controls read; what precedes them comes from elsewhere."""

TRIES = ({"optimizer": "muon", "learning_rate": 1e-2}, {"optimizer": "muon", "learning_rate": 2e-2})
"""What every model tries for a sixth of the steps. (Of four settings, with AdamW, smaller models took Muon.)"""

SLOWER = 0.4
"""The learning rate of the whole training, of the best one in the trials: with six times the steps, the best rate is
lower, about by the root of that. (At the rate of the trials Transformer-XL hardly learned in the first half.)"""


@dataclass(frozen=True)
class Sizes:
    """The budget of every model, the longest context, and the positions: `blocks` blocks of `size`."""

    budget: Budget
    longest: int
    blocks: int
    size: int
    resamples: int


@dataclass(frozen=True)
class Plan:
    """What is measured: the groups by label, each with the model that is compared first, and how models are made."""

    sizes: Sizes
    groups: Mapping[str, Sequence[str]]
    recipe: Callable[[Setting, str, Budget], Recipe]
    unit: Unit = "bits_per_byte"
    own: Sequence[int] = OWN  # of each control


def measure_groups(setting: Setting, plan: Plan) -> Results:
    """The losses by context length of all models and controls, and the lengths of each group."""
    sizes, groups = plan.sizes, plan.groups
    contexts = reading.ladder(sizes.longest)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    scored, stream = scored_tokens(setting), setting.stream("test")  # too short a text is refused at once
    blocks = reading.choose_blocks(stream, sizes.blocks, sizes.size, contexts[-1], setting.seed)
    controls = {f"control: {own} own tokens": own for own in plan.own if own in contexts[:-1]}
    models, losses = {}, dict[str, Tensor]()
    for name in names:
        architecture = tuned_member(setting, plan, name)
        run = architecture_run(setting, architecture, setting.seed)
        models[name] = _facts(setting, architecture, run, plan.unit)
        recipe = architecture.tuning.recipe
        losses[name] = _losses(setting, name, recipe, run, blocks, contexts)
        if name == names[0]:
            for label, own in controls.items():
                losses[label] = _losses(setting, label, recipe, run, blocks, contexts, own)
    texts = resampled(len(blocks), blocks.size(1), sizes.resamples, setting.seed)
    return {
        "contexts": list(contexts),
        "shares": list(SHARES),
        "positions": blocks.numel(),
        "blocks": len(blocks),
        "resamples": sizes.resamples,
        "tokens": sizes.budget.tokens,
        "segment": sizes.budget.segment,
        "scored": scored,
        "slower": SLOWER,
        "tokenizer": setting.corpus.header.tokenizer,
        "unit": plan.unit,
        "controls": controls,
        "models": models,
        "curves": {name: curve(nats, texts) for name, nats in losses.items()},
        "groups": {
            label: group_lengths(
                losses,
                group,
                list(controls),
                texts,
                contexts,
                partial(setting.report, f"resampling, {label}"),
            )
            for label, group in groups.items()
        },
    }


def tuned_member(setting: Setting, plan: Plan, name: str) -> Architecture:
    """A model of a group with its tuned recipe."""
    recipe = plan.recipe(setting, name, plan.sizes.budget)
    best = tuned(setting, recipe, name, tries=TRIES, divisor=6, unit=plan.unit)
    if best.tries:
        rate = SLOWER * best.recipe.train.learning_rate
        best = replace(best, recipe=changed(best.recipe, learning_rate=rate))
    return Architecture(name, best)


def _losses(
    setting: Setting,
    name: str,
    recipe: Recipe,
    run: Path,
    blocks: Tensor,
    contexts: Sequence[int],
    own: int | None = None,
) -> Tensor:
    """(L, P) Nats of a trained model, or of its control that reads `own` tokens of its text."""
    reach, most, stream = reading.reach_of(recipe), reading.ceiling(recipe), setting.stream("test")
    read = (
        reading.context_losses if own is None else partial(reading.control_losses, own=own, seed=setting.seed)
    )

    def report(task: str, done: int, total: int) -> None:
        setting.report(f"{name}: {task}", done, total)

    def made() -> Results:
        model, table = load(run).model, dict[int, list[float]]()
        for context in (min(context, most or context) for context in contexts):
            if context not in table:
                nats = read(model, reach, stream, blocks, context, report=report)
                table[context] = [round(value, 5) for value in nats.tolist()]
        return {"nats": [table[min(context, most or context)] for context in contexts]}

    inputs = {
        "run": run.name,
        "contexts": list(contexts),
        "blocks": [*blocks.shape, contexts[-1], setting.seed],
        "reach": reach.model_dump(mode="json"),
        "own": own,
    }
    values = cached(setting, reading.__name__, inputs, made)
    return torch.tensor(values["nats"], dtype=torch.float64)


def _facts(setting: Setting, architecture: Architecture, run: Path, unit: Unit) -> Results:
    """What is told of a trained model; its score is that of the test split, read as in training."""
    limit, recipe = scored_tokens(setting), architecture.tuning.recipe

    def made() -> float:
        bundle = load(run)
        score = evaluate(bundle.model, setting.stream("test"), bundle.reading, limit=limit)
        return float(getattr(score, unit))

    inputs, tries = {"run": run.name, "scored": limit, "unit": unit}, architecture.tuning.tries
    return {
        **architecture.summary(),
        **({"chosen": min(tries, key=lambda one: float(one[unit]))} if tries else {}),
        "ceiling": reading.ceiling(recipe),
        "segment": recipe.train.segment,
        "score": float(cached(setting, evaluate.__module__, inputs, made)),
        "seconds": training_seconds(run),
    }


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
    controls: Sequence[str],
    texts: Tensor,
    contexts: Sequence[int],
    report: Callable[[int, int], None],
) -> Results:
    """The lengths of a group's models and of the controls by both definitions, on the text and on resampled ones."""
    names = [*group, *controls]
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
