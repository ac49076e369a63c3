"""Everything that a run is in the middle of: weights, optimizers, memories, places, random numbers.

Saved as safetensors and JSON beside the model's bundle, so a checkpoint is a bundle and more.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor
from torch.optim import Optimizer

from segue.checkpoint import (
    CHECKPOINTS,
    COUNTERS,
    WEIGHTS,
    Bundle,
    checkpoints,
    read_json,
    read_tensors,
    seal,
    verify,
    whole_folder,
    write_bundle,
    write_json,
    write_tensors,
)
from segue.config import Recipe, Settings
from segue.errors import BundleError, SegueError
from segue.nn.memory import Memory, StateMemory
from segue.nn.xl import TransformerXL
from segue.text.tokenizer import Tokenizer
from segue.training.optim import build_optimizers, optimizer_tensors, restore_optimizers

TENSORS = "training.safetensors"


class Counters(Settings):
    """Where a run is."""

    step: NonNegativeInt = 0
    position: NonNegativeInt = 0  # tokens that each lane has read
    seconds: NonNegativeFloat = 0.0  # of training, over all sittings
    best: float | None = None  # nats per token of the best validation
    best_step: NonNegativeInt | None = None
    stale: NonNegativeInt = 0  # validations since


@dataclass(eq=False)
class State:
    """A run in the middle of training. It changes from step to step."""

    model: TransformerXL
    optimizers: list[Optimizer]
    memories: list[Memory]  # one for each chunk of lanes
    counters: Counters = field(default_factory=Counters)


def fresh_state(recipe: Recipe, device: torch.device, model: TransformerXL | None = None) -> State:
    """The beginning of a run, from nothing or from the weights of a model."""
    torch.manual_seed(recipe.train.seed)
    built = TransformerXL(recipe.model)
    if model is not None:
        built.load_state_dict(model.state_dict())
    built = built.to(device).train()
    lanes = recipe.train.lanes // recipe.train.accumulate
    memories: list[Memory] = [
        built.start(lanes=lanes, reach=recipe.train.reach) for _ in range(recipe.train.accumulate)
    ]
    return State(built, build_optimizers(built, recipe.train), memories)


def save_state(run: Path, state: State, recipe: Recipe, tokenizer: Tokenizer) -> Path:
    """Write a checkpoint, and remove those that are neither the best nor among the newest."""
    target = run / CHECKPOINTS / f"step-{state.counters.step:08d}"
    for leftover in (run / CHECKPOINTS).glob(".step-*"):  # of a run that was killed while saving
        shutil.rmtree(leftover)
    if target.exists():  # resumed here, and nothing has happened since
        return target
    with whole_folder(target) as folder:
        write_bundle(folder, Bundle(state.model, recipe.reading, tokenizer))
        write_tensors(folder / TENSORS, _tensors(state))
        write_json(folder / COUNTERS, state.counters.model_dump(mode="json"))
        seal(folder)
    best = f"step-{state.counters.best_step or 0:08d}"
    for old in checkpoints(run)[: -recipe.train.keep]:
        if old.name != best and old != target:
            shutil.rmtree(old)
    return target


def load_state(run: Path, recipe: Recipe, device: torch.device, warnings: list[str]) -> State:
    """The newest checkpoint that is whole. Damaged ones are passed over, and `warnings` told why."""
    for folder in reversed(checkpoints(run)):
        try:
            verify(folder)
            return _restored(folder, recipe, device)
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
    if state.model.vocabulary.tables[0].is_cuda:
        tensors["random/cuda"] = torch.cuda.get_rng_state(state.model.vocabulary.tables[0].device)
    return tensors


def _restored(folder: Path, recipe: Recipe, device: torch.device) -> State:
    state = fresh_state(recipe, device)
    state.model.load_state_dict(read_tensors(folder / WEIGHTS))
    tensors = read_tensors(folder / TENSORS)
    restore_optimizers(state.model, state.optimizers, _below(tensors, "optimizer/"))
    state.memories = [
        StateMemory.from_tensors(
            {name: value.clone() for name, value in _below(tensors, f"memory/{chunk}/").items()},
            recipe.train.reach,
        ).to(device)
        for chunk in range(recipe.train.accumulate)
    ]
    state.counters = Counters(**read_json(folder / COUNTERS))
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random/cuda"], device)
    return state


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
