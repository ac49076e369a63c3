"""Objectives: a model with its loss in one `forward`, so that DDP and FSDP can wrap it."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from segue.nn.language import LanguageModel
from segue.nn.memory import Memory
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.text.lanes import Segment
from segue.text.pair_batches import Batch

Value = TypeVar("Value")


class ObjectiveOutput(NamedTuple):
    """What an objective returns. A tuple, because FSDP looks for tensors in tuples and not in other classes."""

    nats: Tensor  # (B, T) cross-entropy of each target, unreduced
    memory: Memory | None = None  # for the next segment; None: the model has no memory
    auxiliary: Tensor | None = None  # a scalar that is added to the mean of nats; on all ranks or on none


class Objective(nn.Module):
    """The cross-entropy of a segment."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, segment: Segment, memory: Memory) -> ObjectiveOutput:
        """Nats (B, T) of each target, and the memory for the next segment."""
        device = self.model.vocabulary.tables[0].device
        hidden, after = self.model(
            segment.tokens.to(device), memory, starts=segment.starts, lengths=segment.lengths
        )
        return ObjectiveOutput(self.model.nats(hidden, segment.targets.to(device)), after)


class PairObjective(nn.Module):
    """The label-smoothed cross-entropy of a batch of translations."""

    def __init__(self, model: Seq2Seq | RecurrentSeq2Seq, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> ObjectiveOutput:
        """Nats (B, T) against the smoothed target; zero in padding."""
        model, device = self.model, self.model.vocabulary.tables[0].device
        memory = model.start(batch.source.to(device), batch.source_lengths)
        hidden, _ = model(batch.decoder_input.to(device), memory, lengths=batch.target_lengths)
        targets = batch.targets.to(device)
        nats = model.vocabulary.smoothed_nats(hidden, targets.clamp(min=0), self.smoothing)
        return ObjectiveOutput(nats.masked_fill(targets < 0, 0))

    def within(self, do: Callable[[], Value]) -> Value:
        """Call `do` while FSDP holds the model's weights gathered."""
        return do()
