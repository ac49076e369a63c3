"""The encoder-decoder Transformer: a decoder that reads on, seeing a source besides its own past.

    memory = model.start(source, lengths)         # the source is encoded once
    hidden, memory = model(target, memory)        # as any model that reads on

Letters: B sentences, S tokens of the source, T of the target, H heads, D head width, C width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import KVCache, Reach, Seq2SeqConfig, UniversalSeq2SeqConfig
from segue.errors import InputError
from segue.nn.attention import Attention
from segue.nn.block import Activation, Block, Source
from segue.nn.dropout import Dropout
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.engine import Engine, refuse_rounding
from segue.nn.frozen_seq2seq import FrozenSeq2Seq
from segue.nn.kv_memory import KVMemory, empty_memory
from segue.nn.layout import HOST, SegmentLayout, checked_layout, positions
from segue.nn.low_rank import LowRank, build_low_rank
from segue.nn.mask import AttentionMask, causal_mask, same_padding, whole_mask
from segue.nn.positions import RelativeKeys, XLPositions, interleaved_sinusoids, sinusoids
from segue.nn.vocab import Vocabulary, source_vocabulary

ACTIVATIONS: dict[str, Activation] = {"relu": torch.relu_, "swish": F.silu, "gelu": F.gelu}


@dataclass(frozen=True, eq=False)
class TranslationMemory:
    """The memory of a decoder: keys and values of its source for each layer, and its own KV cache."""

    sources: tuple[Source, ...]
    past: KVMemory
    sentences: tuple[int, ...]
    """Which source each lane has: beams of one sentence can change places without a copy of it."""

    @property
    def lanes(self) -> int:
        return self.past.lanes

    @property
    def lengths(self) -> Tensor:
        return self.past.lengths

    @property
    def seen(self) -> Tensor:
        return self.past.seen

    def select(self, index: Tensor | Sequence[int]) -> Self:
        """These sentences in this order: for beams, or to drop those that ended."""
        past, chosen = self.past.select(index), torch.as_tensor(index, device=HOST)
        sentences = tuple(self.sentences[lane] for lane in chosen.tolist())
        sources = self.sources
        if sentences != self.sentences:
            sources = tuple(_selected(source, chosen) for source in sources)
        return replace(self, sources=sources, past=past, sentences=sentences)


def _selected(source: Source, index: Tensor) -> Source:
    keys_values = source.keys_values.index_select(2, index.to(source.keys_values.device, non_blocking=True))
    padding = source.mask.padding
    if padding is not None:
        padding = padding.index_select(0, index.to(padding.device, non_blocking=True))
    return Source(keys_values, replace(source.mask, padding=padding))


class Seq2Seq(EncoderDecoder):
    """The encoder-decoder of "Attention Is All You Need"."""

    def __init__(self, config: Seq2SeqConfig | UniversalSeq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config, bias=config.output_bias)
        if config.source_vocab:
            self.source_vocabulary = source_vocabulary(config)
        if config.encoding == "xl":
            self.relative = XLPositions(config, config.encoder_layers, 1)
        activation = ACTIVATIONS[config.activation]
        self.encoder = nn.ModuleList(
            Block(config, bias=True, activation=activation) for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            Block(config, bias=True, cross=Attention(config, bias=True), activation=activation)
            for _ in range(config.decoder_layers)
        )
        self.ends_in_norm = config.norm == "pre" or config.final_norm
        if self.ends_in_norm:  # without it, pre-norm's output of the last layer would not be normed
            self.encoder_norm = nn.LayerNorm(config.width)
            self.decoder_norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)
        _initialise(self)
        if isinstance(config, Seq2SeqConfig) and config.attention != "full":  # with a start of its own
            self.low_rank = build_low_rank(config, config.encoder_layers, config.max_source)

    def encode(self, source: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, AttentionMask]:
        """(S, B, C) The encoder's output for sources (B, S), zero in padding; and the mask that hides the padding."""
        hidden, layout, mask = self._source(source, lengths)
        self.check_source(layout.size)
        if self.config.encoding != "xl":
            hidden = self.placed(hidden, torch.arange(layout.size, device=source.device)[:, None])
        relations = self.relations(layout.size)
        hidden = self.dropout(hidden)
        near = replace(mask, window=self.config.window or None, global_tokens=self.config.global_tokens)
        for block, relative in zip(self.encoder, relations, strict=True):
            hidden = block(hidden, hidden[:0], relative, near)
        return self._encoded(hidden, layout), mask

    def relations(self, size: int) -> list[RelativeKeys | LowRank | None]:
        """What each of the encoder's layers knows of sources of this size besides their tokens."""
        layers = range(len(self.encoder))
        if self.config.encoding == "xl":
            both = self.relative.to_both_sides(size)
            return [self.relative.relative_keys(layer, both) for layer in layers]
        if self.config.attention != "full":
            return [self.low_rank.layer(layer, size) for layer in layers]
        return [None] * len(layers)

    def _source(self, source: Tensor, lengths: Tensor | None) -> tuple[Tensor, SegmentLayout, AttentionMask]:
        """The embeddings (S, B, C) of sources (B, S), their layout, and what attends to what."""
        layout = checked_layout(source, None, lengths)
        return self.source_embedding.embed(source.T), layout, whole_mask(layout, source.device)

    @property
    def source_embedding(self) -> Vocabulary:
        return self.source_vocabulary if self.config.source_vocab else self.vocabulary

    def _encoded(self, hidden: Tensor, layout: SegmentLayout) -> Tensor:
        """The encoder's output of its last layer's, (S, B, C)."""
        if self.ends_in_norm:
            hidden = self.encoder_norm(hidden)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.T.to(hidden.device, non_blocking=True)[..., None], 0)
        return hidden

    def start(self, source: Tensor, lengths: Tensor | None = None) -> TranslationMemory:
        """The memory of a decoder that has read its sources (B, S) and nothing of a target."""
        hidden, mask = self.encode(source, lengths)
        past = self.empty_past(hidden, self.config.decoder_layers, hidden.size(1))
        return TranslationMemory(self._sources(hidden, mask), past, tuple(range(past.lanes)))

    @staticmethod
    def memory_of(sources: tuple[Source, ...], past: KVMemory, sentences: Tensor) -> TranslationMemory:
        """The memory of lanes with this past, each with the source of its sentence (B,)."""
        chosen = tuple(sentences.tolist())
        if chosen != tuple(range(sources[0].keys_values.size(2))):
            sources = tuple(_selected(source, sentences) for source in sources)
        return TranslationMemory(sources, past, chosen)

    def _sources(self, hidden: Tensor, mask: AttentionMask) -> tuple[Source, ...]:
        """For each of the decoder's blocks, keys and values of the encoder's output (S, B, C)."""
        sources = []
        for block in self.decoder:
            assert isinstance(block, Block)
            sources.append(Source(block.project_source(hidden), mask))
        return tuple(sources)

    def empty_past(self, like: Tensor, layers: int, lanes: int) -> KVMemory:
        """The KV cache of lanes that have read nothing of a target, of the type of `like`."""
        row, span = (self.config.heads, self.config.head_width), self.config.decoder_span
        reach = Reach(memory=span - 1, span=span) if span else Reach(memory=2**31)
        return empty_memory(like, layers, row, lanes, reach)

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> Engine[Any]:
        """The engine that reads with these weights, one token of each lane by native code. They must not change."""
        refuse_rounding(self, int8, kv_cache)
        return FrozenSeq2Seq(self)

    def forward(
        self, target: Tensor, memory: TranslationMemory, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, TranslationMemory]:
        """Read on in targets (B, T): hidden states (B, T, C), and the memory to read on with."""
        layout, past, mask = self._opened(target, memory, lengths)
        places = positions(layout, past.seen).T.to(target.device, non_blocking=True)
        hidden = self.dropout(self.placed(self.vocabulary.embed(target.T), places))
        slots = past.slots(layout.size)
        for block, slot, source in zip(self.decoder, slots, memory.sources, strict=True):
            hidden = block(hidden, slot, None, mask, asked(source, layout.size))
        return self.closed(hidden, layout), replace(memory, past=past.extended(layout))

    def _opened(
        self, target: Tensor, memory: TranslationMemory, lengths: Tensor | None
    ) -> tuple[SegmentLayout, KVMemory, AttentionMask]:
        """The layout of targets (B, T), the past with slots for them, and the attention mask."""
        layout = checked_layout(target, None, lengths)
        if not isinstance(memory, TranslationMemory):
            raise InputError(
                f"a translator reads with the memory of its own start; found {type(memory).__name__}, "
                "which the engine that made it reads: frozen(tokens, memory)"
            )
        if memory.lanes != len(target):
            raise InputError(
                f"the memory has {memory.lanes} sentences and the target {len(target)}; "
                "start as many as you read, or use memory.select()"
            )
        past = memory.past.merged().with_slots(layout.size)
        return layout, past, causal_mask(layout, past.size, past.lengths, past.reach.span, target.device)

    def closed(self, hidden: Tensor, layout: SegmentLayout) -> Tensor:
        """The hidden states (B, T, C) of the decoder's last layer's, (T, B, C)."""
        if self.ends_in_norm:
            hidden = self.decoder_norm(hidden)
        hidden = hidden.transpose(0, 1)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(hidden.device, non_blocking=True)[..., None], 0)
        return hidden

    def check_source(self, size: int) -> None:
        if 0 < self.config.max_source < size:
            raise InputError(
                f"{size} tokens are more than the {self.config.max_source} of max_source, for which linformer has "
                "columns; truncate the sources"
            )

    def placed(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Embeddings (…, C) with the sinusoids of their places (…) added."""
        encode = interleaved_sinusoids if self.config.sinusoids == "interleaved" else sinusoids
        return hidden + encode(places, self.config.width, hidden.dtype)


def asked(source: Source, queries: int) -> Source:
    """The same source, for this many queries."""
    return Source(source.keys_values, same_padding(replace(source.mask, size=queries)))


@torch.no_grad()
def _initialise(model: Seq2Seq) -> None:
    """Matrices by Glorot, embeddings with standard deviation 1 / sqrt(C), norms 1, the rest 0."""
    for name, weight in model.named_parameters():
        if "tables" in name:
            nn.init.normal_(weight, 0.0, model.config.width**-0.5)
        elif weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.constant_(weight, 1.0 if name.endswith("norm.weight") else 0.0)
