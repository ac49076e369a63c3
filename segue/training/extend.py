"""Extending a run: which settings may change on resume, and how the learning rate continues."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from segue.checkpoint import CHECKPOINTS, checkpoint_path, checkpoints, step_of
from segue.errors import TrainingError
from segue.files import remove_folder
from segue.recipe import (
    AnyRecipe,
    Extension,
    Schedule,
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
"""Settings that may change when a run is resumed: how long and how often, never what is computed."""


class Extended(NamedTuple):
    """A changed recipe for a resumed run."""

    recipe: AnyRecipe
    notes: list[str]  # for the user: how the learning rate continues
    trunk: int | None = None  # first go back to this step, before the cool-down


def extended(run: Path, changes: Sequence[str], how: Extension | None) -> Extended:
    """The run's recipe with some changes; `how` says how the learning rate continues if steps are added."""
    if not (run / "recipe.toml").is_file():
        raise TrainingError(
            f"{run} is no run (it has no recipe.toml); start one: segue train PRESET --data DIR -o {run}"
        )
    values = read_recipe(run / "recipe.toml")
    before, after = recipe_of(values), recipe_of(with_changes(values, changes))
    ignored = dict.fromkeys(EXTENDABLE)
    rest = [one.model_dump(exclude={"train"}) for one in (before, after)]
    if rest[0] != rest[1] or before.train.model_copy(update=ignored) != after.train.model_copy(
        update=ignored
    ):
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
            raise TrainingError(_ask_how(old, new))
        how = "stretch"
    if how is None:
        return Extended(after, [])
    entry = {"extensions": (*old.extensions, (old.steps, how))} if new.steps > old.steps else {}
    chosen = after.model_copy(update={"train": new.model_copy(update=entry)})
    return Extended(chosen, [_note(old, chosen.train, how)])


def _ask_how(old: Schedule, new: Schedule) -> str:
    """The error for more steps without --extend: what each choice does to the learning rate."""
    last, jump = learning_rate_at(old.steps - 1, old), learning_rate_at(old.steps, new)
    return (
        f"the {old.schedule} schedule of {old.steps:,} steps ends at a learning rate of {last:.2g}; say how to go on: "
        f"--extend hold (stay there), --extend rewarm (the schedule once more, up to {old.learning_rate:.2g}), "
        f"--extend stretch (as if {new.steps:,} steps had been planned: the learning rate jumps to {jump:.2g})"
    )


def _note(old: Schedule, new: Schedule, how: Extension) -> str:
    """A note to the user: how the learning rate continues."""
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


def _from_trunk(run: Path, after: AnyRecipe, old: Schedule) -> Extended:
    """Go back to before the cool-down, so that the longer run equals one that was planned so long."""
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
        "later checkpoints are kept as cooled-step-…"
    )
    return Extended(after, [note], trunk)


def set_aside_after(run: Path, trunk: int) -> None:
    """Rename the checkpoints after the trunk: they can still be loaded, but the run is not resumed from them."""
    for folder in checkpoints(run):
        if step_of(folder) > trunk:
            aside = run / CHECKPOINTS / f"cooled-{folder.name}"
            if aside.exists():
                remove_folder(aside)
            folder.rename(aside)
