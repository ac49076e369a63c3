"""Language model architectures with equal parameter counts: Transformers with and without memory, recurrent networks.

All are trained on the same number of tokens of the same text. In the full version each architecture first tries the
same few optimizer settings for a quarter of the steps, and takes the one with the best validation loss.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from segue.checkpoint import Bundle, load
from segue.config import LanguageConfig, Reach, Reading, RecurrentConfig, XLConfig
from segue.footprint import parameters
from segue.lab.experiment import Setting
from segue.lab.trained import budget, recipe_for, schedule, trained_run
from segue.lab.tuning import Tuned, tuned
from segue.recipe import Recipe

RECURRENT = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}

ARCHITECTURES = {
    "Transformer-XL": {"encoding": "xl"},
    "XL without recurrence": {"encoding": "xl", "memory": 0},
    "vanilla Transformer": {"encoding": "sinusoidal", "memory": 0},
    **{name: {} for name in RECURRENT},
}
"""All architectures by name; of a Transformer, its arguments for `recipe_for`."""


@dataclass(frozen=True, eq=False)
class Architecture:
    """An architecture with its tuned recipe."""

    name: str
    tuning: Tuned

    def summary(self) -> dict[str, Any]:
        """What the results say of it."""
        return {"parameters": parameters(self.tuning.recipe.model), **self.tuning.summary()}


def tuned_architecture(setting: Setting, name: str) -> Architecture:
    """The architecture with the best of the optimizer settings; in the quick version with the default ones."""
    return Architecture(name, tuned(setting, _recipe(setting, name), name))


def trained_architecture(setting: Setting, architecture: Architecture, seed: int) -> Bundle:
    """The trained model; trained now unless its run is there already."""
    return load(architecture_run(setting, architecture, seed))


def architecture_run(setting: Setting, architecture: Architecture, seed: int) -> Path:
    """The same, as the run's folder."""
    return trained_run(setting, architecture.tuning.seeded(seed), f"{architecture.name}, seed {seed}")


def _recipe(setting: Setting, name: str) -> Recipe:
    """A recipe with as many parameters as the Transformer-XL that other experiments train."""
    base = recipe_for(setting, seed=setting.seed)
    count = parameters(base.model)
    if name not in RECURRENT:
        recipe = recipe_for(setting, seed=setting.seed, **ARCHITECTURES[name])  # type: ignore[arg-type]
        return recipe.model_copy(update={"model": _with_parameters(recipe.model, count)})
    build = partial(RecurrentConfig, vocab=base.model.vocab, cell=RECURRENT[name], layers=2)
    widths = range(2, 8 * base.model.width, 2)
    place = bisect_left(widths, count, key=lambda width: parameters(build(width=width)))
    nearest = min(
        widths[max(0, place - 1) : place + 1], key=lambda width: abs(parameters(build(width=width)) - count)
    )
    return Recipe(
        model=build(width=nearest),
        train=schedule(budget(setting), seed=setting.seed, memory=1),
        reading=Reading(segment=base.reading.segment, reach=Reach(memory=1)),
    )


def _with_parameters(model: LanguageConfig, count: int) -> LanguageConfig:
    """A Transformer whose feed-forward width makes its parameters as near to `count` as possible."""
    assert isinstance(model, XLConfig)
    more = (count - parameters(model)) / (model.layers * (2 * model.width + 1))
    return model.model_copy(update={"feedforward": model.feedforward + round(more)})
