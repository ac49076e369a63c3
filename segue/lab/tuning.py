"""Equal tuning for every side of a comparison: the same few optimizer settings, chosen on the validation split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from segue.checkpoint import load
from segue.infer.evaluate import Score, evaluate
from segue.lab.experiment import Results, Setting
from segue.lab.trained import scored_tokens, trained_run
from segue.recipe import Recipe

TRIES: tuple[dict[str, Any], ...] = (
    {"optimizer": "muon", "learning_rate": 5e-3},
    {"optimizer": "muon", "learning_rate": 1e-2},
    {"optimizer": "adamw", "learning_rate": 2e-3},
    {"optimizer": "adamw", "learning_rate": 5e-3},
)
"""The optimizer settings that every side tries, for a quarter of the steps."""

Unit = Literal["bits_per_byte", "perplexity"]
"""What is compared on the validation split: a property of its score. Words have no bits per byte."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """A tuned recipe."""

    recipe: Recipe
    tries: list[Results]  # each with its validation score; none in the quick version

    def seeded(self, seed: int) -> Recipe:
        return changed(self.recipe, seed=seed)

    def summary(self) -> Results:
        """What the results say of it."""
        return {
            "optimizer": self.recipe.train.optimizer,
            "learning_rate": self.recipe.train.learning_rate,
            "tries": self.tries,
        }


def tuned(
    setting: Setting,
    recipe: Recipe,
    label: str,
    *,
    tries: Sequence[Mapping[str, Any]] = TRIES,
    divisor: int = 4,
    unit: Unit = "bits_per_byte",
) -> Tuned:
    """The recipe with the best of the settings, each tried for a part of the steps; in the quick version unchanged."""
    if setting.quick:
        return Tuned(recipe, [])
    reached = [getattr(_reached(setting, recipe, one, label, divisor), unit) for one in tries]
    told = [{**one, unit: value} for one, value in zip(tries, reached, strict=True)]
    return Tuned(changed(recipe, **tries[reached.index(min(reached))]), told)


def changed(recipe: Recipe, **train: Any) -> Recipe:
    """The recipe with changed training settings."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def _reached(setting: Setting, recipe: Recipe, tried: Mapping[str, Any], label: str, divisor: int) -> Score:
    """The score on the validation split after a fraction of the steps."""
    steps = max(20, recipe.train.steps // divisor)
    short = changed(recipe, **tried, steps=steps, warmup=max(1, steps // 20))
    bundle = load(trained_run(setting, short, f"{label}, {tried['optimizer']} at {tried['learning_rate']:g}"))
    limit = scored_tokens(setting, "valid")
    return evaluate(bundle.model, setting.stream("valid"), bundle.reading, limit=limit)
