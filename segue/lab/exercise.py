"""Learning in the lab without a run on disk: tasks made up on the way, and models that the house does not have."""

from collections.abc import Callable

from torch import Tensor, nn

from segue.progress import Report
from segue.recipe import Schedule
from segue.training.optim import build_optimizers, learning_rate_at, set_learning_rate


def brief(steps: int, rate: float, **more: object) -> Schedule:
    """The tuning that experiments share: Muon for the matrices inside layers, a short rise, a cosine."""
    settings: dict[str, object] = {
        "optimizer": "muon",
        "warmup": max(1, steps // 20),
        "floor": 0.02,
        "beta2": 0.98,
        "clip": 1.0,
    }
    return Schedule(**{**settings, "steps": steps, "learning_rate": rate, **more})


def exercise(
    model: nn.Module,
    schedule: Schedule,
    loss: Callable[[int], Tensor],
    *,
    told: str,
    report: Report,
    after: Callable[[int], None] = lambda _: None,
) -> bool:
    """Lower the loss of each step, which is nats; `after` is told how many steps were taken.

    A loss that is not finite ends it, with the model as it was before; returns whether it came to its end.
    """
    optimizers = build_optimizers(model.train(), schedule)
    for step in range(schedule.steps):
        nats = loss(step)
        nats.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        if not (nats.isfinite() and norm.isfinite()):
            return False
        set_learning_rate(optimizers, learning_rate_at(step, schedule))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        after(step + 1)
        if step % 10 == 9:
            report(f"training {told}", step + 1, schedule.steps)
    return True
