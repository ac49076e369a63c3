"""Transformer-XL: reading a segment turns one memory into the next.

    hidden, memory = model(tokens, memory)

This is the model as it is trained, with hidden states as its memory; `frozen.py` is the engine that reads fast.
Letters: B lanes, T tokens in the segment, M states in memory, S = M + T keys, C width, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import KVCache, Reach, Reading, UniversalConfig, XLConfig
from segue.errors import InputError
from segue.nn.block import Block
from segue.nn.dropout import Dropout
from segue.nn.frozen import FrozenXL
from segue.nn.language import LanguageModel, check_lanes
from segue.nn.layout import HOST, SegmentLayout, checked_layout, positions
from segue.nn.mask import AttentionMask, layer_masks
from segue.nn.memory import Memory, StateMemory
from segue.nn.ngrams import NGrams, no_tokens, recent_after
from segue.nn.patterns import layer_patterns
from segue.nn.positions import Positions, Relative, build_positions, check_places
from segue.nn.vocab import Vocabulary


class Opened(NamedTuple):
    """A segment that is about to be read."""

    hidden: Tensor  # (T, B, C) its embeddings
    memory: StateMemory  # new in the lanes whose first token begins a document
    layout: SegmentLayout
    places: Tensor
    masks: list[AttentionMask]  # of each layer
    relative: tuple[Relative | None, ...]
    ngrams: Tensor | None  # (T, B, C) vectors of n-grams, for every layer
    recent: Tensor | None  # (B, n - 1) the last tokens when it has been read, for n-grams


class TransformerWithMemory(LanguageModel):
    """What Transformer-XL and the Universal Transformer share: all that is not their layers."""

    config: XLConfig | UniversalConfig
    positions: Positions
    layer_tables: nn.ParameterList  # (V, C) of each layer but the first; none without `layer_embeddings`
    ngrams: NGrams | None
    blocks: nn.ModuleList
    dropout: Dropout

    def layer_input(
        self, layer: int, hidden: Tensor, tokens: Tensor, places: Tensor, ngrams: Tensor | None = None
    ) -> Tensor:
        """What enters a layer (…, C): vectors of the positions (…) and of the tokens (…) are added to hidden states.

        So are those of n-grams (…, C). Memory keeps the sum, so what was added need not be known any more later.
        """
        hidden = self.positions.layer_input(layer, hidden, places)
        if ngrams is not None:
            hidden = hidden + ngrams
        if not layer or not self.layer_tables:
            return hidden
        return hidden + F.embedding(tokens, self.layer_tables[layer - 1]) * math.sqrt(self.config.width)

    def start(self, *, lanes: int = 1, reach: Reach) -> StateMemory:
        """The memory of lanes that have read nothing yet."""
        check_lanes(lanes)
        if reach.clamp is not None and not self.config.position_encoding.relative:
            raise InputError(
                f"clamp {reach.clamp} limits distances, and encoding {self.config.encoding!r} knows none; leave it out"
            )
        self._check_pinned(reach)
        held = reach.memory if reach.initial == "zeros" else 0
        table = self.vocabulary.tables[
            0
        ]  # a rank may hold a part of it only: zeros like it would be parts too
        empty = torch.zeros(lanes, held, self.config.width, dtype=table.dtype, device=table.device)
        counts = torch.full((lanes,), held, device=HOST)
        recent = no_tokens(lanes, self.ngram_length, table.device)
        return StateMemory((empty,) * self.config.layers, counts, torch.zeros_like(counts), reach, recent)

    def opened(self, tokens: Tensor, memory: Memory, starts: Tensor | None, lengths: Tensor | None) -> Opened:
        """What all layers need to know of a segment (B, T)."""
        layout = checked_layout(tokens, starts, lengths)
        if not isinstance(memory, StateMemory):
            raise InputError(
                f"a model in training reads on with a StateMemory; found {type(memory).__name__}: begin with "
                "model.start(), or read with model.frozen()"
            )
        self.check_memory(memory, tokens, self.config.layers, (self.config.width,))
        fresh, layout = self.new_documents(memory, layout)
        if fresh is not None:
            begun, empty = fresh
            memory = memory.renewed(begun, empty.to(memory.device))
        places = self.token_positions(memory, layout).T.to(tokens.device, non_blocking=True)
        hidden = self.dropout(self.positions.embedded(self.vocabulary.embed(tokens.T), places))
        masks = self.masks(memory, layout, hidden.device)
        relative = self.relative_keys(self.distances_of(memory, layout), memory.reach.clamp)
        ngrams, recent = (
            self.ngram_vectors(tokens, memory, layout),
            recent_after(memory.recent, tokens, layout),
        )
        return Opened(hidden, memory, layout, places, masks, relative, ngrams, recent)

    def ngram_vectors(self, tokens: Tensor, memory: Memory, layout: SegmentLayout) -> Tensor | None:
        """(T, B, C) What n-grams that end with the tokens (B, T) add to the input of every layer; None without any."""
        return None if self.ngrams is None else self.ngrams(tokens, memory, layout)

    @property
    def ngram_length(self) -> int:
        """n, the tokens of the longest n-gram; 1 without n-grams."""
        return 1 if self.ngrams is None else self.ngrams.config.ngrams

    def check_memory(
        self,
        memory: Memory,
        tokens: Tensor,
        layers: int,
        row: tuple[int, ...],
        kind: torch.dtype | None = None,
    ) -> None:
        super().check_memory(memory, tokens, layers, row, kind)
        held = 0 if memory.recent is None else memory.recent.size(1)
        if held != self.ngram_length - 1:
            raise InputError(
                f"this model's memory carries {self.ngram_length - 1} tokens for n-grams; found {held}; "
                "begin with model.start()"
            )

    def closed(self, opened: Opened, hidden: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, StateMemory]:
        """The hidden states (B, T, C) of the layers' output (T, B, C), and the memory with their inputs (B, T, C)."""
        hidden, layout = self.dropout(hidden).transpose(0, 1), opened.layout
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(hidden.device, non_blocking=True)[..., None], 0)
        return hidden, opened.memory.extended(inputs, layout, opened.recent)

    def looks_back(self, reading: Reading) -> int | None:
        """Every layer sees farther than the one below; positions and blocks that are counted know the beginning."""
        in_blocks = isinstance(self.config, XLConfig) and self.config.pattern == "fixed"
        counts = self.config.position_encoding.counts or in_blocks or reading.reach.pinned > 0
        if counts and reading.reach.positions == "onward":
            return None
        return reading.overlap(self.config.layers) + self.ngram_length - 1

    def relative_keys(self, keys: int, clamp: int | None) -> tuple[Relative | None, ...]:
        """How each block's attention knows the distances between S keys; None if it does not."""
        distances = self.positions.distances(keys, clamp, self.vocabulary.tables[0])
        return tuple(self.positions.relative_keys(layer, distances) for layer in range(len(self.blocks)))

    def distances_of(self, memory: Memory, layout: SegmentLayout) -> int:
        """How many distances the relative keys must tell apart: S, or up to the clamp where pinned rows are farther."""
        keys = memory.size + layout.size
        if not memory.reach.pinned or not isinstance(self.config, XLConfig):
            return keys
        return max(keys, (memory.reach.clamp or self.config.max_distance) + 1)

    def _check_pinned(self, reach: Reach) -> None:
        """Refuse pinned rows where their distance could not be told, or where a pattern has its own far keys."""
        if not reach.pinned:
            return
        if not isinstance(self.config, XLConfig) or self.config.pattern != "full":
            raise InputError(f"pinned {reach.pinned} needs a Transformer-XL with full or windowed attention")
        if self.config.position_encoding.rotates:
            raise InputError(
                f"pinned {reach.pinned} does not go with rotary positions, whose angles have no clamp"
            )
        if self.config.encoding in ("xl", "alibi") and reach.clamp is None:
            raise InputError(
                f"pinned {reach.pinned} rows get ever farther away; encoding {self.config.encoding!r} needs a clamp"
            )

    def masks(self, memory: Memory, layout: SegmentLayout, device: torch.device) -> list[AttentionMask]:
        """The attention mask of each layer."""
        return layer_masks(layout, memory, layer_patterns(self.config), device)

    def token_positions(self, memory: Memory, layout: SegmentLayout) -> Tensor:
        """(B, T) Where each token stands in its document; empty for encodings that do not count."""
        if not isinstance(self.config, XLConfig) or not self.config.position_encoding.counts:
            return torch.empty(0, 0, device=HOST)
        restarting = memory.reach.positions != "onward"
        places = positions(layout, torch.zeros_like(memory.seen) if restarting else memory.seen)
        check_places(places, self.config)
        return places

    def new_documents(
        self, memory: Memory, layout: SegmentLayout
    ) -> tuple[tuple[Tensor, StateMemory] | None, SegmentLayout]:
        """The lanes (B,) whose first token begins a document, with a fresh memory; and the layout without those."""
        if layout.starts is None:
            return None, layout
        later = layout.without_first()
        if later.starts is not None and memory.reach.initial == "zeros":
            raise InputError(
                "a memory of zeros can begin at a segment's first token only, and a document starts later in this one; "
                "cut the segment there, or use initial='empty'"
            )
        begun = layout.starts[:, 0]
        if not begun.any():
            return None, later
        return (begun, self.start(lanes=layout.lanes, reach=memory.reach)), later


class TransformerXL(TransformerWithMemory):
    """A causal language model that reads on: each layer also attends to its own states of earlier segments."""

    config: XLConfig

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)
        self.positions = build_positions(config)
        further = config.layers - 1 if config.layer_embeddings else 0
        self.layer_tables = nn.ParameterList(torch.empty(config.vocab, config.width) for _ in range(further))
        self.ngrams = NGrams(config) if config.ngrams > 1 else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        initialise(self, config.init)

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> FrozenXL:
        """The engine that reads with these weights. While it is in use they must not change.

        `int8` rounds the weights to 8 bits; `kv_cache` is the precision of keys and values in memory.
        """
        return FrozenXL(self, int8=int8, kv_cache=kv_cache)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, StateMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), and the memory to read on with.

        `starts` (B, T) marks the tokens that begin a new document: nothing before them is attended to from there on.
        `lengths` (B,) tells how many tokens of each lane are real; hidden states of padding are zero.
        """
        opened = self.opened(tokens, memory, starts, lengths)
        hidden, inputs = opened.hidden, []
        for layer, block in enumerate(self.blocks):
            hidden = self.layer_input(layer, hidden, tokens.T, opened.places, opened.ngrams)
            inputs.append(hidden.transpose(0, 1))
            past = opened.memory.rows[layer].detach().transpose(0, 1)
            hidden = block(hidden, past, opened.relative[layer], opened.masks[layer])
        return self.closed(opened, hidden, inputs)


@torch.no_grad()
def initialise(model: nn.Module, spread: float, projections: float = 0.01) -> None:
    """The published start: weights N(0, spread), norms N(1, spread), projections N(0, 0.01), biases zero.

    The layers' own embeddings and those of n-grams begin with zero.
    """
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if "norm.weight" in name:
            nn.init.normal_(parameter, 1.0, spread)
        elif "vocabulary" in name and "projections" in name:
            nn.init.normal_(parameter, 0.0, projections)
        elif (
            kind in ("bias", "table_bias", "cluster_bias")
            or "vocabulary.biases" in name
            or "layer_tables" in name
            or "ngrams.tables" in name
        ):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, 0.0, spread)
