"""The checkpoints of a run: `checkpoints/step-00000100`, each a bundle with the state of training in it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from segue.checkpoint.files import CONFIG, COUNTERS, checksums, read_json, verify_file
from segue.errors import BundleError, SegueError
from segue.files import present
from segue.recipe import read_recipe, recipe_of

CHECKPOINTS = "checkpoints"

Loaded = TypeVar("Loaded")


def read_model(path: Path | str, read: Callable[[Path], Loaded]) -> Loaded:
    """Call `read` with the folder of a bundle, or of a run's best checkpoint. The run may be training meanwhile."""
    run = Path(path)
    if not (run / CHECKPOINTS).is_dir():
        return read(_bundle_at(run))
    while True:
        folder = best_checkpoint(run)
        try:
            return read(folder)
        except SegueError:
            if listed(folder):
                raise
            # else the run has removed it, after it saved a newer one


def _bundle_at(path: Path) -> Path:
    folder = present(path)
    if (folder / CONFIG).is_file():
        return folder
    if path.exists():
        raise BundleError(
            f"{path} is no bundle: it has no {CONFIG}; a foreign checkpoint needs `segue import` first"
        )
    raise BundleError(f"there is no bundle at {path}")


def checkpoints(run: Path) -> list[Path]:
    """A run's checkpoints, from the oldest to the newest."""
    folders = (run / CHECKPOINTS).glob("step-*")
    return sorted(folder for folder in folders if folder.name.removeprefix("step-").isdecimal())


def listed(checkpoint: Path) -> bool:
    """Whether the checkpoint is still in its run's folder, be it only a link that leads nowhere."""
    return os.path.lexists(checkpoint)


def best_checkpoint(run: Path) -> Path:
    """The checkpoint with the best validation metric, or the newest if the run was never validated."""
    while True:
        saved = checkpoints(run)
        if not saved:
            raise BundleError(f"{run} has no checkpoint yet")
        try:
            verify_file(saved[-1], COUNTERS, checksums(saved[-1]))  # it decides which weights are loaded
            step = read_json(saved[-1] / COUNTERS).get("best_step")
        except BundleError:
            if listed(saved[-1]):
                raise
            continue  # removed by a run that is still training
        return next((folder for folder in saved if step_of(folder) == step), saved[-1])


def checkpoint_path(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoints(run: Path) -> list[Path]:
    """The checkpoints that a run keeps as its newest (`train.keep`); not the initial one, nor the best or the trunk."""
    keep = recipe_of(read_recipe(run / "recipe.toml")).train.keep
    return [folder for folder in checkpoints(run)[-keep:] if step_of(folder) > 0]
