"""The training loop: read the lanes in order, carry memory along, and leave a run that can always go on.

Letters: B lanes, T tokens in the segment.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segue.checkpoint import checkpoints
from segue.config import Reading, Recipe
from segue.errors import TrainingError
from segue.infer.evaluate import Score, evaluate
from segue.nn.footprint import training_flops
from segue.text.corpus import Corpus
from segue.text.lanes import Lanes, Segment
from segue.training.objective import Objective
from segue.training.optim import rate_at, set_rate
from segue.training.state import State, save_state


@dataclass(frozen=True)
class Event:
    """What happened at a step, for whoever watches or writes it down."""

    kind: str  # begin, step, valid, saved, warning, done
    step: int
    values: dict[str, Any]


@dataclass(eq=False)
class Training:
    """A run under way."""

    recipe: Recipe
    run: Path
    corpus: Corpus
    state: State
    device: torch.device
    interrupted: Callable[[], bool] = lambda: False

    def events(self) -> Iterator[Event]:
        """Train to the end, telling what happens. Whoever stops listening stops the training."""
        train, counters = self.recipe.train, self.state.counters
        lanes = Lanes(self.corpus.stream("train"), train.lanes, train.documents)
        objective = Objective(self.state.model)
        begin = time.monotonic() - counters.seconds
        reason = ""
        yield self._begin()
        while self.state.counters.step < train.steps:
            loss = self._step(objective, lanes)
            seconds = time.monotonic() - begin
            self._count(step=self.state.counters.step + 1, seconds=seconds)
            step = self.state.counters.step
            yield Event("step", step, {"nats": loss, "rate": rate_at(step - 1, train), "seconds": seconds})
            if _due(step, train.validate_every):
                yield self._validate()
            reason = self._stop_reason(seconds)
            if reason:
                break
            if _due(step, train.save_every) or self.state.counters.best_step == step:
                yield self._save()
        yield self._save()
        yield Event(
            "done",
            self.state.counters.step,
            {"reason": reason or "steps", "seconds": self.state.counters.seconds},
        )

    def _begin(self) -> Event:
        """What a watcher needs to make sense of the steps."""
        train, split = self.recipe.train, self.corpus.header.splits["train"]
        values = {
            "steps": train.steps,
            "seconds": self.state.counters.seconds,
            "tokens_per_step": train.lanes * train.segment,
            "flops_per_step": training_flops(self.recipe.model, train),
            "bytes_per_token": split.bytes / split.tokens,
        }
        return Event("begin", self.state.counters.step, values)

    def _stop_reason(self, seconds: float) -> str:
        if self.interrupted():
            return "interrupted"
        minutes, patience = self.recipe.train.minutes, self.recipe.train.patience
        if patience and self.state.counters.stale >= patience:
            return "plateau"
        return "minutes" if minutes is not None and seconds >= 60 * minutes else ""

    def _step(self, objective: Objective, lanes: Lanes) -> float:
        """One update of the weights, from one segment of every lane; nats per token."""
        train, state = self.recipe.train, self.state
        segment = lanes.segment(state.counters.position, train.segment)
        total = 0.0
        for chunk, part in enumerate(_chunks(segment, train.accumulate)):
            with self._precision():
                nats, memory = objective(part, state.memories[chunk])
            counted = nats[:, train.segment // 2 :] if train.loss == "half" else nats
            loss = counted.float().mean() / train.accumulate
            self._check_finite(loss, counted, chunk)
            loss.backward()
            total += loss.item()
            state.memories[chunk] = memory
        norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), train.clip)
        if not norm.isfinite():
            raise TrainingError(self._not_finite("the gradient is not finite at"))
        set_rate(state.optimizers, rate_at(state.counters.step, train))
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self._count(position=state.counters.position + train.segment)
        return total

    def _precision(self) -> Any:
        if self.recipe.train.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _check_finite(self, loss: Tensor, nats: Tensor, chunk: int) -> None:
        if loss.isfinite():
            return
        rows = nats.detach().isfinite().all(dim=1)
        lane = chunk * len(nats) + int((~rows).nonzero()[0])
        raise TrainingError(self._not_finite(f"the loss of lane {lane} is not finite at"))

    def _not_finite(self, what: str) -> str:
        kept = checkpoints(self.run)
        good = f"the last good checkpoint is {kept[-1]}; " if kept else ""
        return f"{what} step {self.state.counters.step + 1}; {good}try a lower rate, a longer warm-up or a smaller clip"

    def _validate(self) -> Event:
        """Read the validation split with a memory of its own; training's is left alone."""
        train, model, counters = self.recipe.train, self.state.model, self.state.counters
        reading = Reading(segment=train.segment, reach=train.reach)
        model.eval()
        stream = self.corpus.stream("valid")
        score: Score = evaluate(
            model, stream, reading, limit=train.validate_tokens, documents=train.documents
        )
        model.train()
        nats = score.nats / score.tokens
        if counters.best is None or nats < counters.best:
            self._count(best=nats, best_step=counters.step, stale=0)
        else:
            self._count(stale=counters.stale + 1)
        values = {
            "nats": nats,
            "bits_per_byte": score.bits_per_byte,
            "perplexity": math.exp(min(700.0, nats)),
        }
        return Event("valid", counters.step, values)

    def _save(self) -> Event:
        target = save_state(self.run, self.state, self.recipe, self.corpus.tokenizer)
        return Event("saved", self.state.counters.step, {"checkpoint": str(target)})

    def _count(self, **changes: Any) -> None:
        self.state.counters = self.state.counters.model_copy(update=changes)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _chunks(segment: Segment, count: int) -> Iterator[Segment]:
    """The lanes in `count` groups."""
    size = len(segment.tokens) // count
    for first in range(0, len(segment.tokens), size):
        rows = slice(first, first + size)
        starts = None if segment.starts is None else segment.starts[rows]
        yield Segment(segment.tokens[rows], segment.targets[rows], starts)
