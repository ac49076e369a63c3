"""The training loop: take a step, report it, validate, save; a run can be resumed at any time.

A task says which model learns from which data: a language model from lanes, or a translator from pairs.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from segue.checkpoint import checkpoints
from segue.distributed import ALONE, Ranks, full_tensor
from segue.progress import Report, silent
from segue.recipe import Schedule
from segue.training.optim import learning_rate_at, set_learning_rate
from segue.training.state import State, save_state

STOP_REASONS = ("", "minutes", "plateau", "interrupted", "steps")
"""Why a run stops. If ranks have different reasons, the last in this order counts."""


@dataclass(frozen=True)
class Event:
    """What happened at a step, for the log and for callbacks."""

    kind: str  # begin, step, valid, saved, note, warning, done
    step: int
    values: dict[str, Any]


class MicroBatch(NamedTuple):
    """The loss of one micro-batch: a step adds up the gradients of several."""

    loss: Tensor  # a scalar; over the micro-batches of a step they add up to nats per token
    nats: Tensor  # (rows, T), of which the loss is the mean
    row_name: Callable[[int], str]  # names a row in the error if its loss is not finite
    auxiliary: Tensor | None = None  # a scalar that is added to the loss

    def backward(self) -> None:
        """Add this micro-batch's gradients to the weights' gradients."""
        (self.loss if self.auxiliary is None else self.loss + self.auxiliary).backward()

    def detached(self) -> "MicroBatch":
        """The same numbers, without the graph that computed them."""
        auxiliary = None if self.auxiliary is None else self.auxiliary.detach()
        return self._replace(loss=self.loss.detach(), nats=self.nats.detach(), auxiliary=auxiliary)


class StepLoss(NamedTuple):
    """The loss of a step, the mean over all ranks."""

    nats: float  # per token
    auxiliary: float | None  # None: the objective has no auxiliary loss


class Validation(NamedTuple):
    """Scores on the validation split."""

    metric: float  # decides which checkpoint is the best; lower is better
    amount: int  # tokens or pairs that were read
    scores: dict[str, float]  # for the log


class Task(Protocol):
    """Which model learns from which data."""

    def metadata(self) -> dict[str, Any]:
        """The size of a step, for the log: tokens, floating-point operations."""

    def micro_batches(self, state: State) -> Iterator[MicroBatch]:
        """The next step's micro-batches. Call `backward` on each before asking for the next."""

    def validate(self, state: State, report: Report) -> Validation:
        """Score the model on the validation split."""

    def write(self, folder: Path, state: State) -> None:
        """Write the files of a bundle except its weights."""


@dataclass(eq=False)
class Training:
    """A run in progress."""

    schedule: Schedule
    run: Path
    task: Task
    state: State
    interrupted: Callable[[], bool] = lambda: False
    ranks: Ranks = ALONE
    report: Report = silent

    def events(self) -> Iterator[Event]:
        """Train to the end; yield an event for each step, validation and save. Closing the iterator stops training."""
        schedule, state = self.schedule, self.state
        started = time.monotonic() - state.counters.seconds
        size = {"steps": schedule.steps, "seconds": state.counters.seconds, **self.task.metadata()}
        yield Event("begin", state.counters.step, size)
        if self.ranks.world_size > 1:
            self._dry_run()
        while not (reason := self._stop_reason()):
            loss = self._step()
            seconds = time.monotonic() - started
            state.count(step=state.counters.step + 1, seconds=seconds)
            step = state.counters.step
            values = {
                "nats": loss.nats,
                "learning_rate": learning_rate_at(step - 1, schedule),
                "seconds": seconds,
            }
            if loss.auxiliary is not None:
                values["auxiliary"] = loss.auxiliary
            yield Event("step", step, values)
            if _due(step, schedule.validate_every) or (schedule.validate_every and step == schedule.steps):
                yield from self._validate()
            if _due(step, schedule.save_every) or step in (state.counters.best_step, schedule.trunk):
                yield self._save()
        yield self._save()
        self.ranks.wait_for_save()
        yield Event("done", state.counters.step, {"reason": reason, "seconds": state.counters.seconds})

    def _stop_reason(self) -> str:
        """Why the run stops before the next step, the same on all ranks; empty if it does not."""
        counters, schedule = self.state.counters, self.schedule
        reason = ""
        if counters.step >= schedule.steps:
            reason = "steps"
        elif self.interrupted():
            reason = "interrupted"
        elif schedule.patience and counters.stale >= schedule.patience:
            reason = "plateau"
        elif schedule.minutes is not None and counters.seconds >= 60 * schedule.minutes:
            reason = "minutes"
        return STOP_REASONS[self.ranks.all_reduce_max(STOP_REASONS.index(reason))]

    def _dry_run(self) -> None:
        """Compute gradients once and discard them.

        DDP rebuilds its gradient buckets after the first backward pass, and they decide the order of sums. A resumed
        run must have rebuilt them before its first step, or it would differ from an uninterrupted run in the last bits.
        """
        state = self.state
        counters, memories = state.counters, list(state.memories)
        with torch.random.fork_rng():
            for micro_batch in self.task.micro_batches(state):
                micro_batch.backward()
        for optimizer in state.optimizers:
            optimizer.zero_grad()
        state.counters, state.memories = counters, memories

    def _step(self) -> StepLoss:
        """Update the weights once."""
        state = self.state
        losses = self._backward()
        norm = full_tensor(
            torch.nn.utils.clip_grad_norm_(state.weights.values(), self.schedule.clip or math.inf)
        )
        loss = self._checked(losses, norm)
        set_learning_rate(state.optimizers, learning_rate_at(state.counters.step, self.schedule))
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def _backward(self) -> list[MicroBatch]:
        """Compute the gradients of all micro-batches of a step. Their losses stay on the device."""
        losses = []
        for micro_batch in self.task.micro_batches(self.state):
            micro_batch.backward()
            losses.append(micro_batch.detached())
        return losses

    def _checked(self, losses: Sequence[MicroBatch], norm: Tensor) -> StepLoss:
        """The loss of a step, which is finite, as is the gradient's norm. Here the host waits for a GPU, once."""
        auxiliaries = [batch.auxiliary for batch in losses if batch.auxiliary is not None]
        scalars = torch.stack(
            [one.double() for one in (*(batch.loss for batch in losses), *auxiliaries, norm)]
        ).tolist()
        nats = self.ranks.all_reduce_mean(sum(scalars[: len(losses)]))
        if not math.isfinite(nats):
            rows = self.ranks.all_gather(next(filter(None, map(_row_not_finite, losses)), ""))
            raise self.ranks.error(
                self._not_finite(f"the loss of {next(filter(None, rows))} is not finite at")
            )
        auxiliary = self.ranks.all_reduce_mean(sum(scalars[len(losses) : -1])) if auxiliaries else None
        if auxiliary is not None and not math.isfinite(auxiliary):
            raise self.ranks.error(self._not_finite("the auxiliary loss is not finite at"))
        if not math.isfinite(scalars[-1]):
            raise self.ranks.error(self._not_finite("the gradient is not finite at"))
        return StepLoss(nats, auxiliary)

    def _not_finite(self, what: str) -> str:
        saved = checkpoints(self.run)
        good = f"the last good checkpoint is {saved[-1]}; " if saved else ""
        advice = "try a lower learning rate, a longer warm-up or a smaller clip"
        return f"{what} step {self.state.counters.step + 1}; {good}{advice}"

    def _validate(self) -> Iterator[Event]:
        state = self.state
        state.model.eval()
        metric, amount, scores = self.ranks.all_gather(tuple(self.task.validate(state, self.report)))[0]
        state.model.train()
        counters = state.counters
        if counters.best_of not in (None, amount):
            read = f"the best validation so far read {counters.best_of:,} and this one {amount:,}"
            text = f"{read}: the comparison starts again"
            yield Event("warning", counters.step, {"text": text})
            state.count(best=None, best_step=None, best_of=amount, stale=0)
            counters = state.counters
        if math.isfinite(metric) and (counters.best is None or metric < counters.best):
            state.count(best=metric, best_step=counters.step, best_of=amount, stale=0)
        else:
            state.count(stale=counters.stale + 1)
        yield Event("valid", counters.step, scores)

    def _save(self) -> Event:
        target = save_state(self.run, self.state, self.schedule, self.task.write, self.ranks)
        return Event("saved", self.state.counters.step, {"checkpoint": str(target)})


def _row_not_finite(micro_batch: MicroBatch) -> str:
    """The name of the first row whose loss is not finite; empty if all are."""
    if micro_batch.loss.isfinite():
        return ""
    finite = micro_batch.nats.detach().isfinite().all(dim=1)
    return micro_batch.row_name(int((~finite).nonzero()[0]))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
