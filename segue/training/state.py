"""The state of a run: weights, optimizer state, memories, counters, random number generators.

A checkpoint is the model's bundle and these files:

    training.json             the counters
    training.safetensors      optimizer state, and weights of the objective alone; of a single process also memories
                              and random number generators
    lanes-00000.safetensors   memories and random number generators of one rank, if there are several

Memories are numbered in the order of their lanes, over all ranks, so a run can be resumed with another number of ranks.
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
from segue.files import atomic_folder, remove_folder
from segue.nn.memory import Memory
from segue.recipe import Schedule
from segue.training.optim import build_optimizers, optimizer_tensors, restore_optimizers

TENSORS = "training.safetensors"


class Counters(Settings):
    """How far a run is."""

    step: NonNegativeInt = 0
    position: NonNegativeInt = (
        0  # tokens read in each lane; of pairs, batches read in this epoch; of texts, texts
    )
    epoch: NonNegativeInt = 0  # of pairs and texts; lanes have no epochs
    seconds: NonNegativeFloat = 0.0  # of training, interruptions not counted
    best: float | None = None  # the best validation metric so far: nats per token, or BLEU with a minus sign
    best_step: NonNegativeInt | None = None
    best_of: NonNegativeInt | None = None  # tokens or pairs that it read; other amounts are not comparable
    stale: NonNegativeInt = 0  # validations since the best one


@dataclass(eq=False)
class State:
    """The state of a run. It is changed in place from step to step."""

    model: nn.Module
    optimizers: list[Optimizer]
    trained: nn.Module  # the model's objective, wrapped for all ranks (DDP, FSDP)
    memories: list[Memory] = field(default_factory=list)  # of a language model: one for each micro-batch
    counters: Counters = field(default_factory=Counters)

    @property
    def heads(self) -> dict[str, nn.Parameter]:
        """The objective's own weights: trained and saved with the run, and no part of the model."""
        named = ((name.removeprefix("module."), weight) for name, weight in self.trained.named_parameters())
        return {name: weight for name, weight in named if not name.startswith("model.")}

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """All weights that are trained, by name."""
        return {**dict(self.model.named_parameters()), **self.heads}

    def count(self, **changes: Any) -> None:
        self.counters = self.counters.model_copy(update=changes)


def fresh_state(model: nn.Module, trained: nn.Module, schedule: Schedule, ranks: Ranks) -> State:
    """The initial state of a run: a model, its wrapped objective and new optimizers."""
    ranks.seed(schedule.seed)
    state = State(model, [], trained.train())
    state.optimizers = build_optimizers(model, schedule, state.heads)
    return state


def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy whole weights into a model, whose own weights may be sharded."""
    own = dict(model.named_parameters())
    model.load_state_dict({name: distributed_like(own[name], whole) for name, whole in weights.items()})


def save_state(
    run: Path, state: State, schedule: Schedule, write: Callable[[Path, State], None], ranks: Ranks = ALONE
) -> Path:
    """Write a checkpoint, and remove old ones as `_prune` says.

    Several ranks write in the background while training goes on; the checkpoint appears when all have finished.
    """
    target, counters = checkpoint_path(run, state.counters.step), state.counters
    shards = target.with_name(f".{target.name}.parts")
    ranks.wait_for_save()
    if ranks.from_rank_zero(lambda: _already_saved(run, target, shards if ranks.world_size > 1 else None)):
        ranks.from_rank_zero(lambda: _prune(run, counters, schedule))  # if it was killed before that
        return target
    weights, own = dict(state.model.state_dict()), _own_tensors(state, ranks)
    learning = {
        f"optimizer/{name}": value
        for name, value in optimizer_tensors(state.weights, state.optimizers).items()
    }
    learning |= {f"heads/{name}": weight.detach() for name, weight in state.heads.items()}

    def finish() -> None:
        with atomic_folder(target, BundleError) as folder:
            write(folder, state)
            if ranks.world_size == 1:
                write_tensors(folder / WEIGHTS, weights)
                write_tensors(folder / TENSORS, {**learning, **own})
            else:
                for file in shards.iterdir():
                    file.rename(folder / file.name)
                shards.rmdir()
            write_json(folder / COUNTERS, counters.model_dump(mode="json"))
            seal(folder)
        _prune(run, counters, schedule)

    def alongside() -> None:
        write_tensors(shards / f"lanes-{ranks.rank:05d}.safetensors", own)

    ranks.save(shards, {WEIGHTS: weights, TENSORS: learning}, alongside, finish)
    return target


def _prune(run: Path, counters: Counters, schedule: Schedule) -> None:
    """Remove the checkpoints that are neither the best, nor the trunk, nor among the newest."""
    protected = {
        checkpoint_path(run, step) for step in (counters.best_step, schedule.trunk) if step is not None
    }
    for old in checkpoints(run)[: -schedule.keep]:
        if old not in protected:
            remove_folder(old)


def _already_saved(run: Path, target: Path, shards: Path | None) -> bool:
    """Whether this checkpoint exists: the run was resumed from it and has taken no step since.

    Removes the leftovers of a run that was killed while saving, and makes a folder for the ranks' shards.
    """
    for leftover in (run / CHECKPOINTS).glob(".step-*"):
        shutil.rmtree(leftover)
    if shards is not None and not target.exists():
        shards.mkdir(parents=True)
    return target.exists()


def load_state(run: Path, fresh: Callable[[], State], warnings: list[str], ranks: Ranks = ALONE) -> State:
    """The state in the newest undamaged checkpoint. Damaged ones are renamed, with the reason added to `warnings`."""
    for folder in reversed(checkpoints(run)):
        try:
            ranks.from_rank_zero(partial(verify, folder))
            return ranks.on_every_rank(partial(_restored, folder, fresh(), ranks))
        except SegueError as error:
            warnings.append(f"skipping a damaged checkpoint: {error}")
            ranks.from_rank_zero(partial(_set_aside, folder))
    raise BundleError(f"{run} has no undamaged checkpoint to resume from; start it again")


def _set_aside(folder: Path) -> None:
    aside = folder.with_name(f"damaged-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


def _own_tensors(state: State, ranks: Ranks) -> dict[str, Tensor]:
    """The tensors that only this rank has: memories and random number generators."""
    tensors: dict[str, Tensor] = {}
    for number, memory in enumerate(state.memories, start=ranks.rank * len(state.memories)):
        tensors |= {f"memory/{number}/{name}": value for name, value in memory.tensors().items()}
    tensors[_generator_key("cpu", ranks)] = torch.get_rng_state()
    device = _device(state.model)
    if device.type == "cuda":
        tensors[_generator_key("cuda", ranks)] = torch.cuda.get_rng_state(device)
    return tensors


def _generator_key(device: str, ranks: Ranks) -> str:
    """The name of a random number generator's state in a checkpoint."""
    return f"random/{device}" if ranks.first else f"random/{device}/{ranks.rank}"


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _restored(folder: Path, state: State, ranks: Ranks) -> State:
    """Set a fresh state to what the checkpoint holds."""
    device = _device(state.model)
    set_weights(state.model, read_tensors(folder / WEIGHTS))
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= {} if file.name == WEIGHTS else read_tensors(file)
    _set_heads(state.heads, _with_prefix(tensors, "heads/"))
    restore_optimizers(state.weights, state.optimizers, _with_prefix(tensors, "optimizer/"))
    if state.memories:
        state.memories = [memory.to(device) for memory in _own_memories(tensors, state.memories, ranks)]
    state.counters = Counters(**read_json(folder / COUNTERS))
    if _generator_key("cpu", ranks) in tensors:
        torch.set_rng_state(tensors[_generator_key("cpu", ranks)])
    else:  # there were fewer ranks before
        ranks.seed(torch.initial_seed(), state.counters.step)
    if _generator_key("cuda", ranks) in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors[_generator_key("cuda", ranks)], device)
    return state


@torch.no_grad()
def _set_heads(heads: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Set the objective's own weights to the saved ones."""
    shapes = [{name: weight.shape for name, weight in some.items()} for some in (heads, saved)]
    if shapes[0] != shapes[1]:
        raise BundleError("the checkpoint has other weights of the objective than the recipe asks for")
    for name, weight in heads.items():
        weight.copy_(distributed_like(weight, saved[name]))


def _own_memories(tensors: dict[str, Tensor], fresh: list[Memory], ranks: Ranks) -> Iterator[Memory]:
    """The saved memories of this rank's lanes, grouped as the fresh ones; the number of ranks may have changed."""
    saved: list[Memory] = []
    while numbered := _with_prefix(tensors, f"memory/{len(saved)}/"):
        saved.append(type(fresh[0]).from_tensors(numbered, fresh[0].reach))
    if sum(memory.lanes for memory in saved) != ranks.world_size * sum(memory.lanes for memory in fresh):
        raise BundleError("the checkpoint has another number of lanes than the recipe")
    first = ranks.rank * sum(memory.lanes for memory in fresh)
    for memory in fresh:
        wanted, offset, parts = range(first, first + memory.lanes), 0, []
        for other in saved:
            rows = [lane - offset for lane in wanted if offset <= lane < offset + other.lanes]
            parts += [other.select(rows)] if rows else []
            offset += other.lanes
        yield type(fresh[0]).join(parts)
        first += memory.lanes


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
