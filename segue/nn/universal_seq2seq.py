"""The Universal Transformer as encoder-decoder: one block for each side, applied over and over.

    memory = model.start(source, lengths)                            # memory.pondering: of the source's tokens
    hidden, memory = model(target, memory)
    hidden, memory, pondering = model.pondered(target, memory)       # also tells of the target's

Every step of the decoder attends to the encoder's output, so keys and values of the source are the same for all steps.
Letters: B sentences, S tokens of the source, T of the target, C width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from segue.config import KVCache, UniversalSeq2SeqConfig
from segue.nn.block import Block
from segue.nn.engine import Engine, refuse_rounding
from segue.nn.halting import Pondering, initialise_halting
from segue.nn.layout import HOST, positions
from segue.nn.mask import AttentionMask
from segue.nn.positions import interleaved_sinusoids
from segue.nn.recurrence import Recurrence, real_tokens
from segue.nn.seq2seq import Seq2Seq, TranslationMemory, asked


@dataclass(frozen=True, eq=False)
class UniversalTranslationMemory(TranslationMemory):
    """The memory of a decoder, with rows for each of its steps; and how long the source was thought about (B, S)."""

    pondering: Pondering

    def select(self, index: Tensor | Sequence[int]) -> Self:
        """These sentences in this order: for beams, or to drop those that ended."""
        chosen = torch.as_tensor(index, device=HOST).to(self.pondering.steps.device, non_blocking=True)
        return replace(super().select(index), pondering=Pondering(*(one[chosen] for one in self.pondering)))


class UniversalSeq2Seq(Seq2Seq):
    """The Universal Transformer that translates."""

    def __init__(self, config: UniversalSeq2SeqConfig) -> None:
        super().__init__(config)
        self.encoder_steps = Recurrence(config)
        self.decoder_steps = Recurrence(config)
        initialise_halting(self)

    def encode(self, source: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, AttentionMask]:
        """(S, B, C) The encoder's output for sources (B, S), zero in padding; and its attention mask."""
        hidden, mask, _ = self.pondered_source(source, lengths)
        return hidden, mask

    def pondered_source(
        self, source: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, AttentionMask, Pondering]:
        """The same as `encode`, and how long each token was thought about (B, S)."""
        hidden, layout, mask = self._source(source, lengths)
        relative, places = None, None
        if self.config.encoding == "xl":
            relative = self.relative.relative_keys(0, self.relative.to_both_sides(layout.size))
        else:
            places = self.signal(torch.arange(layout.size, device=source.device)[:, None], hidden)

        def take(_: int, entered: Tensor) -> Tensor:
            after: Tensor = self.encoder[0](entered, entered[:0], relative, mask)
            return after

        real = real_tokens(layout, source.device)
        hidden, pondering = self.encoder_steps(self.dropout(hidden), real, take, places=places)
        return self._encoded(hidden, layout), mask, pondering.transposed()

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> Engine[Any]:
        """The engine that reads with these weights. Native code knows no halting."""
        refuse_rounding(self, int8, kv_cache)
        return Engine(self)

    def start(self, source: Tensor, lengths: Tensor | None = None) -> UniversalTranslationMemory:
        """The memory of a decoder that has read its sources (B, S) and nothing of a target."""
        hidden, mask, pondering = self.pondered_source(source, lengths)
        past = self.empty_past(hidden, self.config.steps, hidden.size(1))
        return UniversalTranslationMemory(
            self._sources(hidden, mask), past, tuple(range(past.lanes)), pondering
        )

    def forward(
        self, target: Tensor, memory: TranslationMemory, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, TranslationMemory]:
        """Read on in targets (B, T): hidden states (B, T, C), and the memory to read on with."""
        hidden, after, _ = self.pondered(target, memory, lengths=lengths)
        return hidden, after

    def pondered(
        self, target: Tensor, memory: TranslationMemory, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, TranslationMemory, Pondering]:
        """The same, and how long each token was thought about (B, T)."""
        layout, past, mask = self._opened(target, memory, lengths)
        slots, source = past.slots(layout.size), asked(memory.sources[0], layout.size)
        block = self.decoder[0]
        assert isinstance(block, Block)

        def take(step: int, entered: Tensor) -> Tensor:
            after: Tensor = block(entered, slots[step], None, mask, source)
            return after

        def skip(step: int, entered: Tensor) -> None:
            block.remember(entered, slots[step])

        hidden = self.dropout(self.vocabulary.embed(target.T))
        places = self.signal(positions(layout, past.seen).T.to(target.device, non_blocking=True), hidden)
        real = real_tokens(layout, target.device)
        hidden, pondering = self.decoder_steps(hidden, real, take, skip, places=places)
        after = replace(memory, past=past.extended(layout))
        return self.closed(hidden, layout), after, pondering.transposed()

    def signal(self, places: Tensor, like: Tensor) -> Tensor:
        """(…, C) The sinusoids of places (…), which the paper counts from 1."""
        return interleaved_sinusoids(places + 1, self.config.width, like.dtype)
