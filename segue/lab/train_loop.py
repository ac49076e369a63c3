"""A small training loop without a run on disk, for generated tasks and for models that segue itself does not have."""

import math
from collections.abc import Callable

from torch import Tensor, nn

from segue.progress import Report
from segue.recipe import Schedule
from segue.training.optim import build_optimizers, learning_rate_at, set_learning_rate


def short_schedule(steps: int, learning_rate: float, **more: object) -> Schedule:
    """The schedule that experiments share: Muon for the matrices inside layers, a short warm-up, a cosine."""
    settings: dict[str, object] = {
        "optimizer": "muon",
        "warmup": max(1, steps // 20),
        "floor": 0.02,
        "beta2": 0.98,
        "clip": 1.0,
    }
    return Schedule(**{**settings, "steps": steps, "learning_rate": learning_rate, **more})


def optimize(
    model: nn.Module,
    schedule: Schedule,
    loss: Callable[[int], Tensor],
    *,
    label: str,
    report: Report,
    after: Callable[[int], None] = lambda _: None,
    rate: Callable[[int, Schedule], float] = learning_rate_at,
) -> bool:
    """Train the model on `loss(step)`, in nats; `after` is called with the number of steps taken, and `rate`
    tells the learning rate of each step.

    A loss or gradient that is not finite ends training before the weights change. Returns whether all steps were taken.
    """
    optimizers = build_optimizers(model.train(), schedule)
    for step in range(schedule.steps):
        nats = loss(step)
        nats.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), schedule.clip or math.inf)
        if not (nats.isfinite() and norm.isfinite()):
            return False
        set_learning_rate(optimizers, rate(step, schedule))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        after(step + 1)
        if step % 10 == 9:
            report(f"training {label}", step + 1, schedule.steps)
    return True
