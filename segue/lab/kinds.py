"""Five kinds of language models of one size: what remembers states, what remembers nothing, what carries one state.

All read the same text and as many tokens of it. In the full version each kind first tries the same few settings of the
optimizer for a quarter of the steps, and keeps the one that validates best: equal tuning for all.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import Any

from segue.checkpoint import Bundle, load
from segue.config import LanguageConfig, Reach, Reading, RecurrentConfig, XLConfig
from segue.infer.evaluate import evaluate
from segue.lab.experiment import Setting
from segue.lab.trained import budget, recipe_for, schedule, trained_run
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

TRIES = (
    {"optimizer": "muon", "rate": 5e-3},
    {"optimizer": "muon", "rate": 1e-2},
    {"optimizer": "adamw", "rate": 2e-3},
    {"optimizer": "adamw", "rate": 5e-3},
)
"""Settings that every kind tries."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of model as it came out of tuning."""

    name: str
    recipe: Recipe  # of the first seed
    tries: list[dict[str, Any]]  # with what they reached in validation

    def seeded(self, seed: int) -> Recipe:
        train = self.recipe.train.model_copy(update={"seed": seed})
        return self.recipe.model_copy(update={"train": train})

    def told(self) -> dict[str, Any]:
        """For the record."""
        return {
            "parameters": parameters(self.recipe.model),
            "optimizer": self.recipe.train.optimizer,
            "rate": self.recipe.train.rate,
            "tries": self.tries,
        }


def tuned(setting: Setting, name: str) -> Kind:
    """The kind with the best of the settings that all try; in the quick version, with what all begin with."""
    recipe = _recipe(setting, name)
    if setting.quick:
        return Kind(name, recipe, [])
    reached = [_reached(setting, name, recipe, one) for one in TRIES]
    tries = [{**one, "bits_per_byte": bits} for one, bits in zip(TRIES, reached, strict=True)]
    return Kind(name, _changed(recipe, **TRIES[reached.index(min(reached))]), tries)


def trained_kind(setting: Setting, kind: Kind, seed: int) -> Bundle:
    """Trained now unless it already was."""
    return load(trained_run(setting, kind.seeded(seed), f"{kind.name}, seed {seed}"))


def _recipe(setting: Setting, name: str) -> Recipe:
    """Everything has as many parameters as the Transformer-XL that other experiments train too."""
    like = recipe_for(setting, seed=setting.seed)
    wanted = parameters(like.model)
    if name not in RECURRENT:
        recipe = recipe_for(setting, seed=setting.seed, **KINDS[name])  # type: ignore[arg-type]
        return recipe.model_copy(update={"model": _filled(recipe.model, wanted)})
    build = partial(RecurrentConfig, vocab=like.model.vocab, cell=RECURRENT[name], layers=2)
    widths = range(8, 8 * like.model.width, 2)
    place = bisect_left(widths, wanted, key=lambda width: parameters(build(width=width)))
    nearest = min(
        widths[place - 1 : place + 1], key=lambda width: abs(parameters(build(width=width)) - wanted)
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
    return model.model_copy(update={"inner": model.inner + round(more)})


def _changed(recipe: Recipe, **train: Any) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def _reached(setting: Setting, name: str, recipe: Recipe, tried: dict[str, Any]) -> float:
    """Bits per byte of the validation split after a quarter of the steps."""
    steps = max(20, recipe.train.steps // 4)
    short = _changed(recipe, **tried, steps=steps, warmup=max(1, steps // 20))
    bundle = load(trained_run(setting, short, f"{name}, {tried['optimizer']} at {tried['rate']:g}"))
    score = evaluate(bundle.model, setting.stream("valid"), bundle.reading, limit=budget(setting).scored)
    return score.bits_per_byte
