"""How many steps a Universal Transformer takes for a token, on average.

Letters: B lanes, T tokens in the segment.
"""

from typing import NamedTuple

from torch import Tensor

from segue.nn.memory import Memory
from segue.nn.universal import FrozenUniversal
from segue.text.lanes import Segment


class MeanSteps(NamedTuple):
    """A sum over tokens."""

    steps: int = 0
    tokens: int = 0

    @property
    def mean(self) -> float | None:
        """None: no token was counted."""
        return self.steps / self.tokens if self.tokens else None

    def counted(self, steps: Tensor) -> "MeanSteps":
        """With the tokens that took these steps (…); none was taken for padding."""
        return MeanSteps(self.steps + int(steps.sum()), self.tokens + int((steps > 0).sum()))


class StepCounter:
    """Reads segments as `evaluate` does, and counts the steps of those tokens whose targets are scored."""

    def __init__(self, engine: FrozenUniversal) -> None:
        self.engine, self.total = engine, MeanSteps()

    def read(self, segment: Segment, memory: Memory) -> tuple[Tensor, Memory]:
        """(B, T) The cross-entropy of a segment's targets, and the memory to read on with."""
        device, scored = self.engine.device, segment.targets >= 0
        hidden, after, pondering = self.engine.pondered(
            segment.tokens.to(device, non_blocking=True),
            memory,
            starts=segment.starts,
            lengths=segment.lengths,
        )
        self.total = self.total.counted(pondering.steps.cpu() * scored)
        return self.engine.nats(hidden, segment.targets.clamp(min=0)), after
