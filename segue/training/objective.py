"""What is trained: one module with one forward, so that wrappers for several devices go around it alone."""

from torch import Tensor, nn

from segue.nn.language import LanguageModel
from segue.nn.memory import Memory
from segue.text.lanes import Segment


class Objective(nn.Module):
    """The surprise of a segment."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, segment: Segment, memory: Memory) -> tuple[Tensor, Memory]:
        """(B, T) Nats of each target, unreduced, and the memory to go on with."""
        device = self.model.vocabulary.tables[0].device
        hidden, after = self.model(
            segment.tokens.to(device), memory, starts=segment.starts, lengths=segment.lengths
        )
        return self.model.nats(hidden, segment.targets.to(device)), after
