"""Everything that a run is in the middle of: weights, optimizers, memories, places, random numbers.

Saved as safetensors and JSON beside the model's bundle, so a checkpoint is a bundle and more.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor, nn
from torch.optim import Optimizer

from segue.checkpoint import (
    CHECKPOINTS,
    COUNTERS,
    WEIGHTS,
    checkpoints,
    read_json,
    read_tensors,
    seal,
    verify,
    whole_folder,
    write_json,
    write_tensors,
)
from segue.config import Settings
from segue.errors import BundleError, SegueError
from segue.nn.memory import Memory
from segue.recipe import Schedule
from segue.training.optim import build_optimizers, optimizer_tensors, restore_optimizers

TENSORS = "training.safetensors"


class Counters(Settings):
    """Where a run is."""

    step: NonNegativeInt = 0
    position: NonNegativeInt = 0  # tokens that each lane has read, or batches of pairs in this epoch
    epoch: NonNegativeInt = 0  # of pairs
    seconds: NonNegativeFloat = 0.0  # of training, over all sittings
    best: float | None = (
        None  # what the best validation was worth: nats per token, unless the task says otherwise
    )
    best_step: NonNegativeInt | None = None
    stale: NonNegativeInt = 0  # validations since


@dataclass(eq=False)
class State:
    """A run in the middle of training. It changes from step to step."""

    model: nn.Module
    optimizers: list[Optimizer]
    memories: list[Memory] = field(default_factory=list)  # of a language model: one for each chunk of lanes
    counters: Counters = field(default_factory=Counters)

    def count(self, **changes: Any) -> None:
        self.counters = self.counters.model_copy(update=changes)


def fresh_state(model: nn.Module, schedule: Schedule) -> State:
    """The beginning of a run, with what the optimizers begin with."""
    return State(model.train(), build_optimizers(model, schedule))


def save_state(run: Path, state: State, keep: int, write: Callable[[Path, State], None]) -> Path:
    """Write a checkpoint, and remove those that are neither the best nor among the newest."""
    target = run / CHECKPOINTS / f"step-{state.counters.step:08d}"
    for leftover in (run / CHECKPOINTS).glob(".step-*"):  # of a run that was killed while saving
        shutil.rmtree(leftover)
    if target.exists():  # resumed here, and nothing has happened since
        return target
    with whole_folder(target) as folder:
        write(folder, state)
        write_tensors(folder / TENSORS, _tensors(state))
        write_json(folder / COUNTERS, state.counters.model_dump(mode="json"))
        seal(folder)
    best = f"step-{state.counters.best_step or 0:08d}"
    for old in checkpoints(run)[:-keep]:
        if old.name != best and old != target:
            shutil.rmtree(old)
    return target


def load_state(run: Path, fresh: Callable[[], State], warnings: list[str]) -> State:
    """The newest checkpoint that is whole. Damaged ones are passed over, and `warnings` told why."""
    for folder in reversed(checkpoints(run)):
        try:
            verify(folder)
            return _restored(folder, fresh())
        except SegueError as error:
            warnings.append(f"passing over a damaged checkpoint: {error}")
            aside = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
    raise BundleError(f"{run} has no whole checkpoint to go on from; start it again")


def _tensors(state: State) -> dict[str, Tensor]:
    tensors = {
        f"optimizer/{name}": value for name, value in optimizer_tensors(state.model, state.optimizers).items()
    }
    for chunk, memory in enumerate(state.memories):
        tensors |= {f"memory/{chunk}/{name}": value for name, value in memory.tensors().items()}
    tensors["random/cpu"] = torch.get_rng_state()
    device = _device(state.model)
    if device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _restored(folder: Path, state: State) -> State:
    """A fresh state as the checkpoint says."""
    device = _device(state.model)
    state.model.load_state_dict(read_tensors(folder / WEIGHTS))
    tensors = read_tensors(folder / TENSORS)
    restore_optimizers(state.model, state.optimizers, _below(tensors, "optimizer/"))
    state.memories = [
        type(memory)
        .from_tensors(
            {name: value.clone() for name, value in _below(tensors, f"memory/{chunk}/").items()}, memory.reach
        )
        .to(device)
        for chunk, memory in enumerate(state.memories)
    ]
    state.counters = Counters(**read_json(folder / COUNTERS))
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random/cuda"], device)
    return state


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
