"""Recurrence in depth: one block applied over and over, to all tokens side by side.

    X = H + P[t],   H = block(X),   for t = 1 … N

P is a sinusoid of the step's number t, to which that of each token's position may be added. With halting, a token that
has had enough keeps its state, and when all have, a CPU skips the remaining steps.

Letters: B lanes, T tokens, C width, N steps.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from segue.config import StepsConfig
from segue.nn.halting import Halting, Pondering, first_thought
from segue.nn.layout import SegmentLayout
from segue.nn.positions import interleaved_sinusoids
from segue.nn.tracing import tracing

Take = Callable[[int, Tensor], Tensor]
"""Takes a step, numbered from 0: the states (…, C) after it, of what enters it."""

Skip = Callable[[int, Tensor], None]
"""Told of a step that no token takes, and of what would have entered it: later tokens may still look at it."""


def unnoticed(step: int, entered: Tensor) -> None:
    """For those who keep nothing of a skipped step."""


class Recurrence(nn.Module):
    """Takes `steps` steps, or with halting as many as every token wants."""

    def __init__(self, config: StepsConfig) -> None:
        super().__init__()
        self.steps = config.steps
        self.halting = Halting(config) if config.halts else None

    def forward(
        self,
        hidden: Tensor,
        real: Tensor | None,
        take: Take,
        skip: Skip = unnoticed,
        *,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Pondering]:
        """The output (…, C) for states (…, C), and how long each token was thought about.

        `real` (…) marks the tokens that are no padding, None if all are. `places` (…, C) are sinusoids of positions.
        """
        numbers = torch.arange(1, self.steps + 1, device=hidden.device)
        signals: Iterable[Tensor] = interleaved_sinusoids(numbers, hidden.size(-1), hidden.dtype)
        if real is None:
            real = torch.ones(hidden.shape[:-1], dtype=torch.bool, device=hidden.device)
        signals = signals if places is None else [signal + places for signal in signals]
        if self.halting is None:
            for step, signal in enumerate(signals):
                hidden = take(step, hidden + signal)
            return hidden, Pondering(real * self.steps, torch.zeros_like(real, dtype=hidden.dtype))
        thought = first_thought(hidden, real)
        for step, signal in enumerate(signals):
            entered = thought.state + signal
            if step and _over(thought.running):
                skip(step, entered)
                continue
            after = take(step, entered)
            thought = self.halting(thought, entered, after, last=step + 1 == self.steps)
        return thought.output.to(hidden.dtype), thought.pondering


def _over(running: Tensor) -> bool:
    """Whether all tokens have halted, as far as a CPU can tell. A GPU is not asked: to wait for its answer in
    every step costs more than steps that change nothing. Nor is a graph that is traced.
    """
    return running.is_cpu and not tracing() and not bool(running.any())


def real_tokens(layout: SegmentLayout, device: torch.device) -> Tensor | None:
    """(T, B) Which places of a segment hold a token; None if all do."""
    return None if layout.padded is None else ~layout.padded.T.to(device, non_blocking=True)
