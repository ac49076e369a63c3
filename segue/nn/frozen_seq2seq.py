"""The engine of an encoder-decoder Transformer: it reads one token of each lane by native code where that can run.

Letters: B lanes, S tokens of the source, T tokens of a segment, C width, V vocabulary, K tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from segue import native
from segue.errors import InputError
from segue.nn.attention import casting
from segue.nn.block import Block
from segue.nn.engine import Engine
from segue.nn.kv_rows import KVRows, no_rows
from segue.nn.layout import checked_layout
from segue.nn.memory import checked_lanes
from segue.nn.native_decoder import NativeDecoder, decodes, likeliest
from segue.nn.packed_source import PackedSource, packed_source

if TYPE_CHECKING:
    from segue.nn.seq2seq import Seq2Seq, TranslationMemory


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """The memory of a decoder whose lanes share what they can: a sentence's source, and the past of its beams."""

    source: PackedSource
    sentences: Tensor  # (B,) which source each lane has
    past: KVRows

    @property
    def lanes(self) -> int:
        return self.past.lanes

    @property
    def lengths(self) -> Tensor:
        held = min(
            self.past.table.size(1), self.past.reach.memory
        )  # the oldest row falls off with the next token
        return torch.full((self.lanes,), held)

    @property
    def seen(self) -> Tensor:
        return torch.full((self.lanes,), self.past.read)

    def select(self, index: Tensor | Sequence[int]) -> Self:
        """These lanes in this order, also several times. No key or value is copied."""
        chosen = checked_lanes(index, self.lanes)
        return replace(self, sentences=self.sentences[chosen], past=self.past.select(chosen))

    def plain(self, model: "Seq2Seq") -> "TranslationMemory":
        """The same memory as the model itself reads it: with rows of each lane's own."""
        return model.memory_of(self.source.padded(), self.past.plain(), self.sentences)


class FrozenSeq2Seq(Engine["Seq2Seq"]):
    """Reads segments as the model does; single tokens by native code. Many threads may read with it."""

    def __init__(self, model: "Seq2Seq") -> None:
        super().__init__(model)
        decoder = [self.model.decoder, self.model.vocabulary]
        if self.model.ends_in_norm:
            decoder.append(self.model.decoder_norm)
        # Not the weights themselves: loading with assign=True puts others in their place. getattr is slower.
        homes = (module._parameters for part in decoder for module in part.modules())
        self._homes = [(home, name) for home in homes for name in home]
        self._native: tuple[list[int], NativeDecoder] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_native": None}  # copies have other addresses

    @torch.no_grad()
    def start(self, source: Tensor, lengths: Tensor | None = None) -> Any:
        """The memory of a decoder that has read its sources (B, S) and nothing of a target."""
        if self._decoder() is None or casting(source):
            return self.model.start(source, lengths)
        packed = packed_source(self.model, source, checked_layout(source, None, lengths))
        past = self.model.empty_past(packed.keys_values[0], self.config.decoder_layers, len(source))
        return SharedMemory(packed, torch.arange(len(source)), no_rows(past))

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, memory: Any, *, starts: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Read a segment (B, T): its hidden states (B, T, C), and the memory to read on with."""
        if not isinstance(memory, SharedMemory):
            return super().__call__(tokens, memory, starts=starts, lengths=lengths)
        self._check_memory(memory)
        decoder, layout = self._decoder(), checked_layout(tokens, starts, lengths)
        step = starts is None and layout.lengths is None and (layout.lanes, layout.size) == (memory.lanes, 1)
        if decoder is None or not step or casting(tokens):
            return super().__call__(tokens, memory.plain(self.model), starts=starts, lengths=lengths)
        self._check_still()
        place = torch.full((1,), memory.past.read)
        hidden = self.model.placed(self.model.vocabulary.embed(tokens[:, 0]), place)
        past = memory.past.with_slots()
        hidden = decoder(hidden, past, memory.source, memory.sentences)
        return hidden[:, None], replace(memory, past=past)

    @torch.no_grad()
    def likeliest(self, hidden: Tensor, count: int, never: int) -> tuple[Tensor, Tensor]:
        """(B, K) The largest log-probabilities behind states (B, C), the largest first, and their tokens."""
        fits = self._decoder() is not None and self.config.clusters == 1 and not casting(hidden)
        if (
            not fits or not len(hidden) or count < 1
        ):  # native code has a list of at least one for a lane at least
            return super().likeliest(hidden, count, never)
        return likeliest(*self.model.vocabulary.output(hidden), min(count, self.config.vocab), never)

    def _check_memory(self, memory: SharedMemory) -> None:
        """Refuse a memory of another model: native code would read beyond it."""
        rows = memory.past.buffer.storage
        layers, _, _, *row = rows.shape
        wanted = (self.config.decoder_layers, self.config.heads, self.config.head_width)
        kind = self.model.vocabulary.tables[0].dtype
        if (layers, *row) != wanted or rows.dtype != kind:
            raise InputError(
                f"this model's memory has layers, heads and head width {wanted} in {kind}; found {(layers, *row)} in "
                f"{rows.dtype}; begin with engine.start()"
            )

    def _decoder(self) -> NativeDecoder | None:
        """Native code for steps, where it can run them. Weights that have moved since are looked up again."""
        if not native.enabled() or self.config.activation != "relu":
            return None
        weights = [weight for home, name in self._homes if (weight := home[name]) is not None]
        places = [weight.data_ptr() for weight in weights]
        if self._native is None or self._native[0] != places:
            if not decodes(weights):
                return None
            blocks = [block for block in self.model.decoder if isinstance(block, Block)]
            last_norm = self.model.decoder_norm if self.model.ends_in_norm else None
            self._native = (places, NativeDecoder(blocks, last_norm))
        return self._native[1]
