"""The engine of a Transformer-XL: weights that do not change, and all that can be prepared for reading with them.

Letters: B lanes, T tokens in the segment, M rows in memory, S = M + T keys, C width, N layers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from segue import native
from segue.config import KVCache, Reach, XLConfig
from segue.errors import InputError
from segue.nn.attention import casting
from segue.nn.block import Block
from segue.nn.changes import Watch
from segue.nn.engine import Engine, twin
from segue.nn.frozen_layer import FrozenLayer, LanePart
from segue.nn.int8 import check_int8
from segue.nn.kv_memory import KVMemory
from segue.nn.kv_precision import KINDS, kind_of_rows, packed, row_width, unpacked
from segue.nn.layout import HOST, SegmentLayout, checked_layout, positions
from segue.nn.memory import Memory, StateMemory
from segue.nn.native_attention import asked_invariant
from segue.nn.native_step import NativeSteps, native_steps
from segue.nn.ngrams import recent_after
from segue.nn.patterns import layer_patterns
from segue.nn.positions import Relative, RelativeKeys, Rotation, StoredRows, rotation
from segue.nn.sparse import keys_of_one

if TYPE_CHECKING:
    from segue.nn.xl import TransformerWithMemory


MOST_TABLES = 32
"""Tables of relative keys that are kept, one for each power of two of keys and each clamp."""


class FrozenXL(Engine["TransformerWithMemory"]):
    """Reads with keys and values in place of hidden states, and one token at a time in the fewest operations.

    Many threads may read with it.
    """

    def __init__(
        self, model: "TransformerWithMemory", *, int8: bool = False, kv_cache: KVCache = "exact"
    ) -> None:
        super().__init__(
            twin(model)
        )  # whatever is replaced in the model, or set to training, stays as it is here
        if int8:
            check_int8(model)
        self._kind = kind_of_rows(kv_cache, self._exact_kind)  # of what a memory holds
        blocks = [block for block in self.model.blocks if isinstance(block, Block)]
        self._layers = [FrozenLayer(block, int8=int8) for block in blocks]
        self._patterns = layer_patterns(self.config)
        self._relative: dict[tuple[int, int | None, bool], tuple[Relative | None, ...]] = {}
        self._native: NativeSteps | None = None
        self._asked_native = False  # the first step asks: building takes some seconds
        self._watch = Watch(model.parameters())

    @property
    def _exact_kind(self) -> torch.dtype:
        kind: torch.dtype = self.model.vocabulary.tables[0].dtype
        return kind

    @torch.no_grad()
    def start(self, *, lanes: int = 1, reach: Reach) -> KVMemory:
        """The memory of lanes that have read nothing yet."""
        return self.project(self.model.start(lanes=lanes, reach=reach))

    @torch.no_grad()
    def project(self, memory: Memory) -> KVMemory:
        """A training memory as keys and values; keys and values of another engine in the precision of this one."""
        if isinstance(memory, KVMemory):
            return memory.stored_as(self._kind, self._exact_kind)
        if not isinstance(memory, StateMemory):
            raise InputError(f"project wants a StateMemory of this model; found {type(memory).__name__}")
        shapes, kind = [(self.config.width,)] * self.config.layers, self._exact_kind
        if memory.row_shapes != shapes or memory.dtype != kind or memory.device != self.device:
            raise InputError("project wants a memory of this model, in its precision and on its device")
        self._check_still()
        places = memory.seen[:, None] - memory.size + torch.arange(memory.size, device=HOST)
        turning = self._turning(places.T)
        states = zip(self._layers, memory.rows, strict=True)
        rows = [
            packed(layer.keys_values(rows.transpose(0, 1), turning).transpose(0, 2).to(kind), self._kind)
            for layer, rows in states
        ]
        return KVMemory.from_rows(rows, memory.lengths, memory.seen, memory.reach, memory.recent)

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, memory: Memory, *, starts: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, KVMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), and the memory to read on with.

        `starts` (B, T) marks the tokens that begin a new document: nothing before them is attended to from there on.
        `lengths` (B,) tells how many tokens of each lane are real; hidden states of padding are zero.
        """
        memory, layout = self._opened(tokens, memory, starts, lengths)
        if self._is_step(layout, tokens) and not memory.reach.pinned:
            return self._step(tokens[:, 0], memory, layout)
        return self._segment(tokens, memory.merged().with_slots(layout.size), layout)

    def _opened(
        self, tokens: Tensor, memory: Memory, starts: Tensor | None, lengths: Tensor | None
    ) -> tuple[KVMemory, SegmentLayout]:
        """The memory to read a segment (B, T) with, new in the lanes whose first token begins a document."""
        layout = checked_layout(tokens, starts, lengths)
        if not isinstance(memory, KVMemory):
            raise InputError(
                f"an engine reads on with a KVMemory; found {type(memory).__name__}: begin with its own start(), "
                "or use project()"
            )
        self._check_precision(memory)
        row = (2, self.config.heads, row_width(self.config.head_width, self._kind))
        self.model.check_memory(memory, tokens, self.config.layers, row, self._kind)
        self._check_still()
        fresh, layout = self.model.new_documents(memory, layout)
        if fresh is not None:
            begun, empty = fresh
            memory = memory.renewed(begun, self.project(empty.to(memory.device)))
        return memory, layout

    @staticmethod
    def _is_step(layout: SegmentLayout, tokens: Tensor) -> bool:
        """Whether one token of each lane is read, in the fewest operations."""
        alone = layout.size == 1 and layout.lengths is None
        return alone and not casting(tokens) and not asked_invariant()

    def _segment(self, tokens: Tensor, memory: KVMemory, layout: SegmentLayout) -> tuple[Tensor, KVMemory]:
        """Read T tokens of each lane together."""
        model, size = self.model, layout.size
        places = model.token_positions(memory, layout).T.to(tokens.device, non_blocking=True)
        hidden = model.positions.embedded(model.vocabulary.embed(tokens.T), places)
        ngrams = model.ngram_vectors(tokens, memory, layout)
        masks = model.masks(memory, layout, tokens.device)
        relative = self._relative_of(memory, layout)
        for number, (layer, slots) in enumerate(zip(self._layers, memory.slots(size), strict=True)):
            hidden = model.layer_input(number, hidden, tokens.T, places, ngrams)
            hidden = layer.read(hidden, slots.rows, relative[number], masks[number])
        hidden = hidden.transpose(0, 1)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(tokens.device, non_blocking=True)[..., None], 0)
        return hidden, memory.extended(layout, recent_after(memory.recent, tokens, layout))

    def _step(self, tokens: Tensor, memory: KVMemory, layout: SegmentLayout) -> tuple[Tensor, KVMemory]:
        """Read one token of each lane (B,)."""
        model, memory = self.model, memory.with_slots(1)
        places = model.token_positions(memory, layout)
        places = places[:, 0].to(tokens.device, non_blocking=True) if places.numel() else places
        hidden = model.positions.embedded(model.vocabulary.embed(tokens), places)
        ngrams = model.ngram_vectors(tokens[:, None], memory, layout)
        ngrams = None if ngrams is None else ngrams[0]
        recent = recent_after(memory.recent, tokens[:, None], layout)
        relative = self._relative_of(memory, layout)
        steps = self._native_steps(hidden)
        if steps is not None:
            added = self._added(hidden, tokens, places, ngrams)
            return steps(hidden, relative, memory, added)[:, None], memory.extended(layout, recent)
        parts = list(zip(*self._parts(memory), strict=True))
        for number, layer in enumerate(self._layers):
            hidden = model.layer_input(number, hidden, tokens, places, ngrams)
            hidden = layer.step(hidden, relative[number], parts[number])
        return hidden[:, None], memory.extended(layout, recent)

    def _native_steps(self, hidden: Tensor) -> NativeSteps | None:
        """Native code for steps, where it can run them."""
        if not native.enabled() or type(hidden) is not Tensor or self._patterns[0] is not None:
            return None
        if not self._asked_native:
            self._native, self._asked_native = native_steps(self._layers), True
        return self._native

    def _added(self, hidden: Tensor, tokens: Tensor, places: Tensor, ngrams: Tensor | None) -> Tensor | None:
        """(N, B, C) What positions, tokens and n-grams add to the inputs of each layer; None for nothing."""
        if self.config.encoding != "per-layer" and not self.model.layer_tables and ngrams is None:
            return None
        nothing, layers = torch.zeros_like(hidden), range(len(self._layers))
        return torch.stack(
            [self.model.layer_input(number, nothing, tokens, places, ngrams) for number in layers]
        )

    def _parts(self, memory: KVMemory) -> list[Sequence[LanePart]]:
        """For each part of the memory, what each layer sees of it: the keys in its span, the newest to be written."""
        counts = [part.count for part in memory.parts]
        by_lane = zip(memory.lengths.split(counts), memory.seen.split(counts), strict=True)
        by_part: list[Sequence[LanePart]] = []
        for part, (held, seen) in zip(memory.parts, by_lane, strict=True):
            keys = min(part.size + 1, memory.reach.span or part.size + 1)
            layers = part.keys_values(keys, more=1)
            if self._patterns[0] is not None:
                place = seen if memory.reach.positions == "onward" else torch.zeros_like(seen)
                by_part.append(self._sparse_parts(layers, held, place))
                continue
            masked = None
            if int(held.min()) + 1 < keys:
                older = torch.arange(keys, device=HOST) < keys - 1 - held[:, None]
                masked = older[:, None].to(memory.device, non_blocking=True)
            by_part.append([LanePart(keys_values, masked) for keys_values in layers])
        return by_part

    def _sparse_parts(self, layers: Tensor, held: Tensor, place: Tensor) -> Sequence[LanePart]:
        """The same where layers have patterns: each with the keys that its query in this place (B,) sees."""
        patterns = {pattern for pattern in self._patterns if pattern is not None}
        seen = {pattern: keys_of_one(pattern, layers.size(4), held, place) for pattern in patterns}
        parts = []
        for keys_values, pattern in zip(layers, self._patterns, strict=True):
            assert pattern is not None
            index, masked = seen[pattern]
            masked = None if masked is None else masked.to(self.device, non_blocking=True)
            parts.append(LanePart(keys_values, masked, index.to(self.device, non_blocking=True)))
        return parts

    def _relative_of(self, memory: KVMemory, layout: SegmentLayout) -> Sequence[Relative | None]:
        """How each layer's attention knows distances, for one more segment.

        Keys are turned before they are kept, so rotary positions are numbered from the document's start.
        """
        if not self.config.position_encoding.rotates:
            distances = self.model.distances_of(memory, layout)
            if asked_invariant():
                # What is subtracted from a table must not depend on how much was read so far.
                known = self.config.max_distance if isinstance(self.config, XLConfig) else 0
                distances = max(distances, (memory.reach.clamp or 0) + 1, known)
            return self._relative_keys(distances, memory.reach.clamp)
        places = positions(layout, memory.seen).T
        step = layout.size == 1 and layout.lengths is None
        return [self._turning(places[0] if step else places)] * len(self._layers)

    def _turning(self, places: Tensor) -> Rotation | None:
        if not self.config.position_encoding.rotates:
            return None
        places = places.to(self.device, non_blocking=True)
        return rotation(places, self.config.head_width, self._exact_kind)

    def _relative_keys(self, keys: int, clamp: int | None) -> tuple[Relative | None, ...]:
        """Each layer's relative keys for S keys or more, computed once.

        As many as the next power of two: so few tables are kept, and what is read depends on no other reader.
        """
        rows = 1 << (keys - 1).bit_length()
        reached = clamp if clamp is not None and clamp < rows else None
        key = (rows, reached, asked_invariant())
        tables = self._relative.get(key)
        if tables is None:
            with torch.autocast(self.device.type, enabled=False):  # the tables serve readers of any precision
                fresh = self.model.relative_keys(rows, reached)
                if self._kind != self._exact_kind:
                    fresh = tuple(
                        self._rounded(layer, table, rows, reached) for layer, table in enumerate(fresh)
                    )
            tables = tuple(_by_head(table) if isinstance(table, RelativeKeys) else table for table in fresh)
            if len(self._relative) >= MOST_TABLES:
                self._relative = {}  # replaced, not emptied: another thread may be reading it
            self._relative[key] = tables
        return tables

    def _rounded(
        self, layer: int, relative: Relative | None, keys: int, clamp: int | None
    ) -> Relative | None:
        """A layer's relative keys with rows as rounded as keys.

        They are rounded before the farthest is subtracted: so a distance has the same row in every table.
        """
        whole = self.model.positions.whole_rows(layer, keys, clamp)
        if whole is None or not isinstance(relative, RelativeKeys):
            return relative
        stored = packed(whole.transpose(0, 1).contiguous(), self._kind)  # (H, R or R + 1, D)
        rows, known = unpacked(stored, self._exact_kind), len(relative.rows)
        if len(whole) == known:
            return replace(relative, rows=rows.transpose(0, 1), stored=StoredRows(stored, None))
        farthest = rows[:, 0].contiguous() if known else None  # alone, it would only move all scores alike
        kept = StoredRows(stored[:, 1:].contiguous(), farthest)
        return replace(relative, rows=(rows[:, 1:] - rows[:, :1]).transpose(0, 1), stored=kept)

    def _check_precision(self, memory: KVMemory) -> None:
        if memory.dtype != self._kind and {memory.dtype, self._kind} & set(KINDS.values()):
            raise InputError(
                f"this engine keeps keys and values as {self._kind}; the memory's are {memory.dtype}: use project()"
            )

    def _check_still(self) -> None:
        if self._watch.changed:
            raise InputError(
                "the model's weights have changed since it was frozen; call model.frozen() again"
            )


def _by_head(relative: RelativeKeys) -> RelativeKeys:
    """The same with each head's rows in one piece, like its keys."""
    return replace(relative, rows=relative.rows.transpose(0, 1).contiguous().transpose(0, 1))
