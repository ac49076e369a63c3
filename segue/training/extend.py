"""Going on with a run under a changed recipe: what may change, and what becomes of the learning rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from segue.checkpoint import CHECKPOINTS, checkpoint_path, checkpoints, step_of
from segue.errors import TrainingError
from segue.files import remove_folder
from segue.recipe import (
    Extension,
    Recipe,
    Schedule,
    TranslationRecipe,
    read_recipe,
    recipe_of,
    with_changes,
)
from segue.training.optim import learning_rate_at

EXTENDABLE = (
    "steps",
    "minutes",
    "patience",
    "validate_every",
    "validate_tokens",
    "save_every",
    "keep",
    "sharded",
)
"""What of a recipe may change when a run goes on: how long, how often; never what it computes."""


class Extended(NamedTuple):
    """A recipe to go on with."""

    recipe: Recipe | TranslationRecipe
    notes: list[str]  # what becomes of the rate
    trunk: int | None = (
        None  # go back to this step first: the cool-down that follows it is not wanted any more
    )


def extended(run: Path, changes: Sequence[str], how: Extension | None) -> Extended:
    """The run's recipe with some changes; `how` the rate goes on if there are more steps than were planned."""
    if not (run / "recipe.toml").is_file():
        raise TrainingError(
            f"{run} is no run (it has no recipe.toml); start one: segue train PRESET --data DIR -o {run}"
        )
    values = read_recipe(run / "recipe.toml")
    before, after = recipe_of(values), recipe_of(with_changes(values, changes))
    fixed = dict.fromkeys(EXTENDABLE)
    rest = [one.model_dump(exclude={"train"}) for one in (before, after)]
    if rest[0] != rest[1] or before.train.model_copy(update=fixed) != after.train.model_copy(update=fixed):
        raise TrainingError(
            f"a resumed run keeps its recipe; only {', '.join(f'train.{name}' for name in EXTENDABLE)} may change; "
            "to train these weights differently: segue train --from"
        )
    old, new = before.train, after.train
    if how is not None and new.steps <= old.steps:
        raise TrainingError(
            f"--extend says how to go on beyond {old.steps:,} steps; add --set train.steps=… with more"
        )
    if new.steps == old.steps:
        return Extended(after, [])
    if old.cooldown and how is None:
        return _from_trunk(run, after, old)
    if how is None and old.depends_on_steps:
        if new.steps > old.steps:
            raise TrainingError(_choices(old, new))
        how = "stretch"
    if how is None:
        return Extended(after, [])
    entry = {"extensions": (*old.extensions, (old.steps, how))} if new.steps > old.steps else {}
    chosen = after.model_copy(update={"train": new.model_copy(update=entry)})
    return Extended(chosen, [_told(old, chosen.train, how)])


def _choices(old: Schedule, new: Schedule) -> str:
    last, jump = learning_rate_at(old.steps - 1, old), learning_rate_at(old.steps, new)
    return (
        f"the {old.schedule} schedule of {old.steps:,} steps ends at a learning rate of {last:.2g}; say how to go on: "
        f"--extend hold (stay there), --extend rewarm (the schedule once more, up to {old.learning_rate:.2g}), "
        f"--extend stretch (as if {new.steps:,} steps had been planned: the learning rate jumps to {jump:.2g})"
    )


def _told(old: Schedule, new: Schedule, how: Extension) -> str:
    end = min(old.steps, new.steps)
    before, after = learning_rate_at(end - 1, old), learning_rate_at(min(old.steps, new.steps - 1), new)
    words = {
        "hold": f"the learning rate stays at {after:.3g} from step {old.steps:,} on",
        "rewarm": f"the learning rate follows its schedule once more from step {old.steps:,} on, "
        f"beginning at {after:.3g}",
        "stretch": f"the learning rate is now as if {new.steps:,} steps had been planned: "
        f"{after:.3g} at step {end:,}, where it would have been {before:.3g}",
    }
    return words[how]


def _from_trunk(run: Path, after: Recipe | TranslationRecipe, old: Schedule) -> Extended:
    """A cool-down that has begun is undone, so that the longer run is as if it had been planned."""
    trunk = min(old.trunk, after.train.trunk)
    if not any(step_of(folder) > trunk for folder in checkpoints(run)):
        return Extended(after, [])
    if not checkpoint_path(run, trunk).exists():
        raise TrainingError(
            f"{run} has no checkpoint of step {trunk:,}, before the learning rate began to fall; "
            "go on from its end instead: --extend hold or --extend rewarm"
        )
    note = (
        f"going on from step {trunk:,}, before the learning rate began to fall; "
        "what came after it is kept as cooled-step-…"
    )
    return Extended(after, [note], trunk)


def back_to(run: Path, trunk: int) -> None:
    """Put the checkpoints after the trunk aside: they can be loaded, and are not gone on from."""
    for folder in checkpoints(run):
        if step_of(folder) > trunk:
            aside = run / CHECKPOINTS / f"cooled-{folder.name}"
            if aside.exists():
                remove_folder(aside)
            folder.rename(aside)
