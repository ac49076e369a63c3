"""Equal tuning for every side of a comparison: the same few optimizer settings, chosen on the validation split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segue.checkpoint import load
from segue.infer.evaluate import evaluate
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


@dataclass(frozen=True, eq=False)
class Tuned:
    """A tuned recipe."""

    recipe: Recipe
    tries: list[Results]  # each with its validation bits per byte; none in the quick version

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
) -> Tuned:
    """The recipe with the best of the settings, each tried for a part of the steps; in the quick version unchanged."""
    if setting.quick:
        return Tuned(recipe, [])
    reached = [_reached(setting, recipe, one, label, divisor) for one in tries]
    told = [{**one, "bits_per_byte": bits} for one, bits in zip(tries, reached, strict=True)]
    return Tuned(changed(recipe, **tries[reached.index(min(reached))]), told)


def changed(recipe: Recipe, **train: Any) -> Recipe:
    """The recipe with changed training settings."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def _reached(setting: Setting, recipe: Recipe, tried: Mapping[str, Any], label: str, divisor: int) -> float:
    """Bits per byte of the validation split after a fraction of the steps."""
    steps = max(20, recipe.train.steps // divisor)
    short = changed(recipe, **tried, steps=steps, warmup=max(1, steps // 20))
    bundle = load(trained_run(setting, short, f"{label}, {tried['optimizer']} at {tried['learning_rate']:g}"))
    limit = scored_tokens(setting, "valid")
    return evaluate(bundle.model, setting.stream("valid"), bundle.reading, limit=limit).bits_per_byte
