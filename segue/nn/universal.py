"""The Universal Transformer as language model: one block, applied over and over, with a memory for each step.

    hidden, memory = model(tokens, memory)
    hidden, memory, pondering = model.pondered(tokens, memory)      # also tells how long each token was thought about

It reads on as Transformer-XL does: a step attends to what entered the same step in earlier segments. The states of
tokens that have halted stand in for the steps that they did not take.

Letters: B lanes, T tokens in the segment, C width.
"""

import torch
from torch import Tensor, nn

from segue.config import KVCache, UniversalConfig
from segue.nn.block import Block
from segue.nn.dropout import Dropout
from segue.nn.engine import refuse_rounding
from segue.nn.frozen import FrozenXL
from segue.nn.halting import Pondering, initialise_halting
from segue.nn.kv_memory import KVMemory
from segue.nn.layout import SegmentLayout
from segue.nn.mask import causal_mask
from segue.nn.memory import Memory, StateMemory
from segue.nn.positions import XLPositions
from segue.nn.recurrence import Recurrence, real_tokens
from segue.nn.vocab import Vocabulary
from segue.nn.xl import TransformerWithMemory, initialise


class UniversalTransformer(TransformerWithMemory):
    """A causal language model with one block for all its steps, and with as many steps as each token wants."""

    config: UniversalConfig

    def __init__(self, config: UniversalConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)
        self.positions = XLPositions(config, 1, 1)
        self.ngrams = None
        self.blocks = nn.ModuleList([Block(config)])
        self.recurrence = Recurrence(config)
        self.dropout = Dropout(config.dropout)
        initialise(self, config.init)
        initialise_halting(self)

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> "FrozenUniversal":
        """The engine that reads with these weights. While it is in use they must not change."""
        refuse_rounding(self, int8, kv_cache)
        return FrozenUniversal(self)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, StateMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), zero in padding, and the memory to read on with."""
        hidden, after, _ = self.pondered(tokens, memory, starts=starts, lengths=lengths)
        return hidden, after

    def pondered(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, StateMemory, Pondering]:
        """Read a segment (B, T) as `forward` does; and how long each token was thought about (B, T)."""
        opened = self.opened(tokens, memory, starts, lengths)
        inputs: list[Tensor] = []

        def keep(_: int, entered: Tensor) -> None:
            inputs.append(entered.transpose(0, 1))

        def take(step: int, entered: Tensor) -> Tensor:
            keep(step, entered)
            past = opened.memory.rows[step].detach().transpose(0, 1)
            after: Tensor = self.blocks[0](entered, past, opened.relative[0], opened.masks[0])
            return after

        real = real_tokens(opened.layout, tokens.device)
        output, pondering = self.recurrence(opened.hidden, real, take, keep)
        return *self.closed(opened, output, inputs), pondering.transposed()


class FrozenUniversal(FrozenXL):
    """Reads with keys and values, as Transformer-XL's engine; a token that halts early takes less time."""

    model: UniversalTransformer

    def __init__(self, model: UniversalTransformer) -> None:
        super().__init__(model)
        self._layers = self._layers * model.config.steps

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, memory: Memory, *, starts: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, KVMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), zero in padding, and the memory to read on with."""
        hidden, after, _ = self.pondered(tokens, memory, starts=starts, lengths=lengths)
        return hidden, after

    @torch.no_grad()
    def pondered(
        self, tokens: Tensor, memory: Memory, *, starts: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, KVMemory, Pondering]:
        """The same, and how long each token was thought about (B, T)."""
        held, layout = self._opened(tokens, memory, starts, lengths)
        if self._is_step(layout, tokens):
            return self._pondered_step(tokens[:, 0], held.with_slots(1), layout)
        return self._pondered_segment(tokens, held.merged().with_slots(layout.size), layout)

    def _pondered_segment(
        self, tokens: Tensor, memory: KVMemory, layout: SegmentLayout
    ) -> tuple[Tensor, KVMemory, Pondering]:
        model, layer, slots = self.model, self._layers[0], memory.slots(layout.size)
        mask = causal_mask(layout, memory.size, memory.lengths, memory.reach.span, tokens.device)
        (relative,) = self._relative_of(memory, layout)

        def take(step: int, entered: Tensor) -> Tensor:
            return layer.read(entered, slots[step].rows, relative, mask)

        def skip(step: int, entered: Tensor) -> None:
            slots[step].rows[:, -len(entered) :] = layer.keys_values(entered, None)

        real = real_tokens(layout, tokens.device)
        hidden, pondering = model.recurrence(model.vocabulary.embed(tokens.T), real, take, skip)
        hidden = hidden.transpose(0, 1)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(tokens.device, non_blocking=True)[..., None], 0)
        return hidden, memory.extended(layout), pondering.transposed()

    def _pondered_step(
        self, tokens: Tensor, memory: KVMemory, layout: SegmentLayout
    ) -> tuple[Tensor, KVMemory, Pondering]:
        model, layer = self.model, self._layers[0]
        (relative,) = self._relative_of(memory, layout)
        parts = list(zip(*self._parts(memory), strict=True))

        def take(step: int, entered: Tensor) -> Tensor:
            return layer.step(entered, relative, parts[step])

        def skip(step: int, entered: Tensor) -> None:
            layer.remember(entered, parts[step])

        hidden, pondering = model.recurrence(model.vocabulary.embed(tokens), None, take, skip)
        steps, remainder = pondering.steps[:, None], pondering.remainder[:, None]
        return hidden[:, None], memory.extended(layout), Pondering(steps, remainder)
