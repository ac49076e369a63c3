"""Objectives: a model with its loss in one `forward`, so that DDP and FSDP can wrap it."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.halting import ponder_cost
from segue.nn.language import LanguageModel
from segue.nn.memory import Memory
from segue.nn.universal import UniversalTransformer
from segue.nn.universal_seq2seq import UniversalSeq2Seq
from segue.text.lanes import Segment
from segue.text.pair_batches import Batch

Value = TypeVar("Value")


class ObjectiveOutput(NamedTuple):
    """What an objective returns. A tuple, because FSDP looks for tensors in tuples and not in other classes."""

    nats: Tensor  # (B, T) cross-entropy of each target, unreduced
    memory: Memory | None = None  # for the next segment; None: the model has no memory
    auxiliary: Tensor | None = (
        None  # a mean over tokens that is added to that of nats; on all ranks or on none
    )


class Objective(nn.Module):
    """The cross-entropy of a segment."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, segment: Segment, memory: Memory, step: int = 0) -> ObjectiveOutput:  # noqa: ARG002
        """Nats (B, T) of each target, and the memory for the next segment. Some objectives change with the step."""
        device = self.model.vocabulary.tables[0].device
        hidden, after = self.model(
            segment.tokens.to(device, non_blocking=True),
            memory,
            starts=segment.starts,
            lengths=segment.lengths,
        )
        return ObjectiveOutput(self.model.nats(hidden, segment.targets), after)


class PonderObjective(Objective):
    """The cross-entropy of a segment, and the ponder cost of its tokens as auxiliary loss."""

    def __init__(self, model: UniversalTransformer, ponder: float) -> None:
        super().__init__(model)
        self.ponder = ponder

    def forward(self, segment: Segment, memory: Memory, step: int = 0) -> ObjectiveOutput:  # noqa: ARG002
        """Nats (B, T) of each target, the memory for the next segment, and τ times the ponder cost."""
        model = self.model
        assert isinstance(model, UniversalTransformer)
        hidden, after, pondering = model.pondered(
            segment.tokens.to(model.device, non_blocking=True),
            memory,
            starts=segment.starts,
            lengths=segment.lengths,
        )
        nats = model.nats(hidden, segment.targets)
        return ObjectiveOutput(nats, after, self.ponder * ponder_cost(pondering))


class PairObjective(nn.Module):
    """The label-smoothed cross-entropy of a batch of translations."""

    def __init__(self, model: EncoderDecoder, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> ObjectiveOutput:
        """Nats (B, T) against the smoothed target; zero in padding."""
        model, device = self.model, self.model.vocabulary.tables[0].device
        memory = model.start(batch.source.to(device, non_blocking=True), batch.source_lengths)
        hidden, _ = model(
            batch.decoder_input.to(device, non_blocking=True), memory, lengths=batch.target_lengths
        )
        return ObjectiveOutput(self._smoothed(hidden, batch.targets))

    def _smoothed(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(B, T) The label-smoothed cross-entropy of targets, which are on the host; zero where there is none.

        The output layer computes real targets alone: in a batch of pairs, up to a third may be padding.
        """
        real = (targets.flatten() >= 0).nonzero().squeeze(1)
        wanted, real = targets.flatten()[real], real.to(hidden.device, non_blocking=True)
        nats = self.model.vocabulary.smoothed_nats(hidden.flatten(0, 1)[real], wanted, self.smoothing)
        return nats.new_zeros(targets.numel()).index_put((real,), nats).view(targets.shape)

    def within(self, do: Callable[[], Value]) -> Value:
        """Call `do` while FSDP holds the model's weights gathered."""
        return do()


class PonderPairObjective(PairObjective):
    """The same, and the ponder cost of both sides' tokens as auxiliary loss."""

    def __init__(self, model: UniversalSeq2Seq, smoothing: float, ponder: float) -> None:
        super().__init__(model, smoothing)
        self.ponder = ponder

    def forward(self, batch: Batch) -> ObjectiveOutput:
        """Nats (B, T) against the smoothed target; and τ times the ponder cost, the mean over both sides' tokens."""
        model, device = self.model, self.model.vocabulary.tables[0].device
        assert isinstance(model, UniversalSeq2Seq)
        memory = model.start(batch.source.to(device, non_blocking=True), batch.source_lengths)
        hidden, _, pondering = model.pondered(
            batch.decoder_input.to(device, non_blocking=True), memory, lengths=batch.target_lengths
        )
        nats = self._smoothed(hidden, batch.targets)
        return ObjectiveOutput(nats, None, self.ponder * ponder_cost(memory.pondering, pondering))
