"""What is trained: one module with one forward, so that wrappers for several devices go around it alone."""

from torch import Tensor, nn

from segue.nn.memory import StateMemory
from segue.nn.xl import TransformerXL
from segue.text.lanes import Segment


class Objective(nn.Module):
    """The surprise of a segment."""

    def __init__(self, model: TransformerXL) -> None:
        super().__init__()
        self.model = model

    def forward(self, segment: Segment, memory: StateMemory) -> tuple[Tensor, StateMemory]:
        """(B, T) Nats of each target, unreduced, and the memory to go on with."""
        device = self.model.vocabulary.tables[0].device
        hidden, after = self.model(
            segment.tokens.to(device), memory, starts=segment.starts, lengths=segment.lengths
        )
        assert isinstance(after, StateMemory)
        return self.model.nats(hidden, segment.targets.to(device)), after
