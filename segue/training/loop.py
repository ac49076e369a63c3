"""The training loop: take a step, tell what happened, validate, save, and leave a run that can always go on.

What is learned, and from what, is a task's: a language model from lanes, a translator from pairs.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from segue.checkpoint import checkpoints
from segue.distributed import ALONE, Ranks, value_of
from segue.recipe import Schedule
from segue.training.optim import rate_at, set_rate
from segue.training.state import State, save_state

REASONS = ("", "minutes", "plateau", "interrupted")
"""Why a run stops before its last step, from the weakest to the strongest."""


@dataclass(frozen=True)
class Event:
    """What happened at a step, for whoever watches or writes it down."""

    kind: str  # begin, step, valid, saved, note, warning, done
    step: int
    values: dict[str, Any]


class Part(NamedTuple):
    """A part of a step's loss."""

    loss: Tensor  # a scalar; the parts of a step add up to nats per token
    nats: Tensor  # (rows, T), what it is the mean of
    rows: Callable[[int], str]  # what a row is called, should it not be finite


class Task(Protocol):
    """What is learned, and from what."""

    def begin(self) -> dict[str, Any]:
        """What a watcher needs to make sense of the steps."""

    def parts(self, state: State) -> Iterator[Part]:
        """The next step's loss, part by part. Each is gone backward through before the next is asked for."""

    def validate(self, state: State) -> dict[str, float]:
        """How it does on the validation split; `worth` decides which is the best, the lower the better."""

    def write(self, folder: Path, state: State) -> None:
        """The files of a bundle."""


@dataclass(eq=False)
class Training:
    """A run under way."""

    schedule: Schedule
    run: Path
    task: Task
    state: State
    interrupted: Callable[[], bool] = lambda: False
    ranks: Ranks = ALONE

    def events(self) -> Iterator[Event]:
        """Train to the end, telling what happens. Whoever stops listening stops the training."""
        schedule, state = self.schedule, self.state
        begin = time.monotonic() - state.counters.seconds
        reason = ""
        told = {"steps": schedule.steps, "seconds": state.counters.seconds, **self.task.begin()}
        yield Event("begin", state.counters.step, told)
        if self.ranks.size > 1:
            self._rehearse()
        while state.counters.step < schedule.steps:
            loss = self._step()
            seconds = time.monotonic() - begin
            state.count(step=state.counters.step + 1, seconds=seconds)
            step = state.counters.step
            yield Event("step", step, {"nats": loss, "rate": rate_at(step - 1, schedule), "seconds": seconds})
            if _due(step, schedule.validate_every) or (schedule.validate_every and step == schedule.steps):
                yield self._validate()
            reason = REASONS[self.ranks.highest(REASONS.index(self._stop_reason(seconds)))]
            if reason:
                break
            if _due(step, schedule.save_every) or state.counters.best_step == step:
                yield self._save()
        yield self._save()
        self.ranks.settle()
        ended = {"reason": reason or "steps", "seconds": state.counters.seconds}
        yield Event("done", state.counters.step, ended)

    def _stop_reason(self, seconds: float) -> str:
        if self.interrupted():
            return "interrupted"
        minutes, patience = self.schedule.minutes, self.schedule.patience
        if patience and self.state.counters.stale >= patience:
            return "plateau"
        return "minutes" if minutes is not None and seconds >= 60 * minutes else ""

    def _rehearse(self) -> None:
        """A step that leaves no trace.

        Torch settles in the first step how it cuts gradients into pieces to add them up, and so in which order: a
        resumed run must have settled it too before its first step, or its last bits would differ.
        """
        state = self.state
        counters, memories = state.counters, list(state.memories)
        with torch.random.fork_rng():
            for part in self.task.parts(state):
                part.loss.backward()
        for optimizer in state.optimizers:
            optimizer.zero_grad()
        state.counters, state.memories = counters, memories

    def _step(self) -> float:
        """One update of the weights; nats per token."""
        state, total, trouble = self.state, 0.0, ""
        for part in self.task.parts(state):
            trouble = trouble or _infinite(part)
            part.loss.backward()
            total += part.loss.item()
        total = self.ranks.mean(total)
        if not math.isfinite(total):
            row = next(filter(None, self.ranks.gathered(trouble)))
            raise self.ranks.error(self._not_finite(f"the loss of {row} is not finite at"))
        norm = value_of(torch.nn.utils.clip_grad_norm_(state.model.parameters(), self.schedule.clip))
        if not norm.isfinite():
            raise self.ranks.error(self._not_finite("the gradient is not finite at"))
        set_rate(state.optimizers, rate_at(state.counters.step, self.schedule))
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return total

    def _not_finite(self, what: str) -> str:
        kept = checkpoints(self.run)
        good = f"the last good checkpoint is {kept[-1]}; " if kept else ""
        return f"{what} step {self.state.counters.step + 1}; {good}try a lower rate, a longer warm-up or a smaller clip"

    def _validate(self) -> Event:
        state = self.state
        state.model.eval()
        found = self.ranks.gathered(self.task.validate(state))[0]
        state.model.train()
        worth, counters = found.pop("worth"), state.counters
        if counters.best is None or worth < counters.best:
            state.count(best=worth, best_step=counters.step, stale=0)
        else:
            state.count(stale=counters.stale + 1)
        return Event("valid", counters.step, found)

    def _save(self) -> Event:
        target = save_state(self.run, self.state, self.schedule.keep, self.task.write, self.ranks)
        return Event("saved", self.state.counters.step, {"checkpoint": str(target)})


def _infinite(part: Part) -> str:
    """The row whose loss is not finite, if there is one."""
    if part.loss.isfinite():
        return ""
    whole = part.nats.detach().isfinite().all(dim=1)
    return part.rows(int((~whole).nonzero()[0]))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
