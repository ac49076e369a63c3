"""Everything that a run is in the middle of: weights, optimizers, memories, places, random numbers.

Saved as safetensors and JSON beside the model's bundle, so a checkpoint is a bundle and more:

    training.safetensors      what the optimizers remember; of one process, also what follows
    lanes-00000.safetensors   of several ranks, each one's memories and random numbers

Memories are numbered in the order of their lanes, over all ranks, so that any number of ranks can share them out.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
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
    checkpoint_path,
    checkpoints,
    read_json,
    read_tensors,
    seal,
    verify,
    write_json,
    write_tensors,
)
from segue.config import Settings
from segue.distributed import ALONE, Ranks, distributed_like
from segue.errors import BundleError, SegueError
from segue.files import remove_folder, whole_folder
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
    best_of: NonNegativeInt | None = None  # how much was read to validate: other amounts do not compare
    stale: NonNegativeInt = 0  # validations since


@dataclass(eq=False)
class State:
    """A run in the middle of training. It changes from step to step."""

    model: nn.Module
    optimizers: list[Optimizer]
    trained: nn.Module  # what a step calls: the model's objective, as it is spread over ranks
    memories: list[Memory] = field(default_factory=list)  # of a language model: one for each chunk of lanes
    counters: Counters = field(default_factory=Counters)

    def count(self, **changes: Any) -> None:
        self.counters = self.counters.model_copy(update=changes)


def fresh_state(model: nn.Module, trained: nn.Module, schedule: Schedule, ranks: Ranks) -> State:
    """The beginning of a run, with what the optimizers begin with."""
    ranks.seed(schedule.seed)
    return State(model, build_optimizers(model, schedule), trained.train())


def fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model these weights, of which it may hold a part only."""
    held = dict(model.named_parameters())
    model.load_state_dict({name: distributed_like(held[name], whole) for name, whole in weights.items()})


def save_state(
    run: Path, state: State, schedule: Schedule, write: Callable[[Path, State], None], ranks: Ranks = ALONE
) -> Path:
    """Write a checkpoint, and remove those that are neither the best, nor the trunk, nor among the newest.

    Of several ranks, each writes its part while training goes on; the checkpoint is there when the last has.
    """
    target, counters = checkpoint_path(run, state.counters.step), state.counters
    parts = target.with_name(f".{target.name}.parts")
    ranks.wait_for_save()
    if ranks.from_rank_zero(lambda: _cleared(run, target, parts if ranks.world_size > 1 else None)):
        ranks.from_rank_zero(
            lambda: _prune(run, counters, schedule)
        )  # it may have been killed before it could
        return target
    weights, own = dict(state.model.state_dict()), _own_tensors(state, ranks)
    optimizers = {
        f"optimizer/{name}": value for name, value in optimizer_tensors(state.model, state.optimizers).items()
    }

    def finish() -> None:
        with whole_folder(target, BundleError) as folder:
            write(folder, state)
            if ranks.world_size == 1:
                write_tensors(folder / WEIGHTS, weights)
                write_tensors(folder / TENSORS, {**optimizers, **own})
            else:
                for file in parts.iterdir():
                    file.rename(folder / file.name)
                parts.rmdir()
            write_json(folder / COUNTERS, counters.model_dump(mode="json"))
            seal(folder)
        _prune(run, counters, schedule)

    def alongside() -> None:
        write_tensors(parts / f"lanes-{ranks.rank:05d}.safetensors", own)

    ranks.save(parts, {WEIGHTS: weights, TENSORS: optimizers}, alongside, finish)
    return target


def _prune(run: Path, counters: Counters, schedule: Schedule) -> None:
    """Remove the checkpoints that are neither the best, nor the trunk, nor among the newest."""
    stay = {checkpoint_path(run, step) for step in (counters.best_step, schedule.trunk) if step is not None}
    for old in checkpoints(run)[: -schedule.keep]:
        if old not in stay:
            remove_folder(old)


def _cleared(run: Path, target: Path, parts: Path | None) -> bool:
    """Whether the checkpoint is there already: resumed from it, and nothing has happened since."""
    for leftover in (run / CHECKPOINTS).glob(".step-*"):  # of a run that was killed while saving or removing
        shutil.rmtree(leftover)
    if parts is not None and not target.exists():
        parts.mkdir(parents=True)
    return target.exists()


def load_state(run: Path, fresh: Callable[[], State], warnings: list[str], ranks: Ranks = ALONE) -> State:
    """The newest checkpoint that is whole. Damaged ones are passed over, and `warnings` told why."""
    for folder in reversed(checkpoints(run)):
        try:
            ranks.from_rank_zero(partial(verify, folder))
            return ranks.on_every_rank(partial(_restored, folder, fresh(), ranks))
        except SegueError as error:
            warnings.append(f"passing over a damaged checkpoint: {error}")
            ranks.from_rank_zero(partial(_set_aside, folder))
    raise BundleError(f"{run} has no whole checkpoint to go on from; start it again")


def _set_aside(folder: Path) -> None:
    aside = folder.with_name(f"damaged-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def _own_tensors(state: State, ranks: Ranks) -> dict[str, Tensor]:
    """What is this rank's and no other's."""
    tensors: dict[str, Tensor] = {}
    for chunk, memory in enumerate(state.memories, start=ranks.rank * len(state.memories)):
        tensors |= {f"memory/{chunk}/{name}": value for name, value in memory.tensors().items()}
    tensors[_random("cpu", ranks)] = torch.get_rng_state()
    device = _device(state.model)
    if device.type == "cuda":
        tensors[_random("cuda", ranks)] = torch.cuda.get_rng_state(device)
    return tensors


def _random(device: str, ranks: Ranks) -> str:
    return f"random/{device}" if ranks.first else f"random/{device}/{ranks.rank}"


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _restored(folder: Path, state: State, ranks: Ranks) -> State:
    """A fresh state as the checkpoint says."""
    device = _device(state.model)
    fill(state.model, read_tensors(folder / WEIGHTS))
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= {} if file.name == WEIGHTS else read_tensors(file)
    restore_optimizers(state.model, state.optimizers, _below(tensors, "optimizer/"))
    if state.memories:
        state.memories = [memory.to(device) for memory in _dealt(tensors, state.memories, ranks)]
    state.counters = Counters(**read_json(folder / COUNTERS))
    if _random("cpu", ranks) in tensors:
        torch.set_rng_state(tensors[_random("cpu", ranks)])
    else:  # there were fewer ranks before
        ranks.seed(torch.initial_seed(), state.counters.step)
    if _random("cuda", ranks) in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors[_random("cuda", ranks)], device)
    return state


def _dealt(tensors: dict[str, Tensor], fresh: list[Memory], ranks: Ranks) -> Iterator[Memory]:
    """The memories of this rank's lanes, in place of fresh ones, however many ranks there were before."""
    pieces: list[Memory] = []
    while below := _below(tensors, f"memory/{len(pieces)}/"):
        pieces.append(type(fresh[0]).from_tensors(below, fresh[0].reach))
    if sum(piece.lanes for piece in pieces) != ranks.world_size * sum(memory.lanes for memory in fresh):
        raise BundleError("it has not as many lanes as the recipe")
    first = ranks.rank * sum(memory.lanes for memory in fresh)
    for memory in fresh:
        wanted, end, parts = range(first, first + memory.lanes), 0, []
        for piece in pieces:
            inside = [lane - end for lane in wanted if end <= lane < end + piece.lanes]
            parts += [piece.select(inside)] if inside else []
            end += piece.lanes
        yield type(fresh[0]).join(parts)
        first += memory.lanes


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
