"""Five kinds of language models of one size: what remembers states, what remembers nothing, what carries one state.

All read the same text and as many tokens of it. In the full version each kind first tries the same few settings of the
optimizer for a quarter of the steps, and keeps the one that validates best: equal tuning for all.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from segue.checkpoint import Bundle, load
from segue.config import LanguageConfig, Reach, Reading, RecurrentConfig, XLConfig
from segue.lab.experiment import Setting
from segue.lab.trained import budget, recipe_for, schedule, trained_run
from segue.lab.tuning import Tuned
from segue.lab.tuning import tuned as tuned_recipe
from segue.nn.footprint import parameters
from segue.recipe import Recipe

RECURRENT = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}

KINDS = {
    "Transformer-XL": {"encoding": "xl"},
    "XL without recurrence": {"encoding": "xl", "memory": 0},
    "vanilla Transformer": {"encoding": "sinusoidal", "memory": 0},
    **{name: {} for name in RECURRENT},
}
"""Everything that can be asked for, and what makes a Transformer of it."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of model as it came out of tuning."""

    name: str
    found: Tuned

    def told(self) -> dict[str, Any]:
        """For the record."""
        return {"parameters": parameters(self.found.recipe.model), **self.found.told()}


def tuned(setting: Setting, name: str) -> Kind:
    """The kind with the best of the settings that all try; in the quick version, with what all begin with."""
    return Kind(name, tuned_recipe(setting, _recipe(setting, name), name))


def trained_kind(setting: Setting, kind: Kind, seed: int) -> Bundle:
    """Trained now unless it already was."""
    return load(kind_run(setting, kind, seed))


def kind_run(setting: Setting, kind: Kind, seed: int) -> Path:
    """The same, as the folder of its run."""
    return trained_run(setting, kind.found.seeded(seed), f"{kind.name}, seed {seed}")


def _recipe(setting: Setting, name: str) -> Recipe:
    """Everything has as many parameters as the Transformer-XL that other experiments train too."""
    like = recipe_for(setting, seed=setting.seed)
    wanted = parameters(like.model)
    if name not in RECURRENT:
        recipe = recipe_for(setting, seed=setting.seed, **KINDS[name])  # type: ignore[arg-type]
        return recipe.model_copy(update={"model": _filled(recipe.model, wanted)})
    build = partial(RecurrentConfig, vocab=like.model.vocab, cell=RECURRENT[name], layers=2)
    widths = range(2, 8 * like.model.width, 2)
    place = bisect_left(widths, wanted, key=lambda width: parameters(build(width=width)))
    nearest = min(
        widths[max(0, place - 1) : place + 1], key=lambda width: abs(parameters(build(width=width)) - wanted)
    )
    return Recipe(
        model=build(width=nearest),
        train=schedule(budget(setting), seed=setting.seed, memory=1),
        reading=Reading(segment=like.reading.segment, reach=Reach(memory=1)),
    )


def _filled(model: LanguageConfig, wanted: int) -> LanguageConfig:
    """A Transformer whose feed-forwards are so wide that it has that many parameters."""
    assert isinstance(model, XLConfig)
    more = (wanted - parameters(model)) / (model.layers * (2 * model.width + 1))
    return model.model_copy(update={"feedforward": model.feedforward + round(more)})
