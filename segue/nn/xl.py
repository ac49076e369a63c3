"""Transformer-XL: reading a segment turns one memory into the next.

    hidden, memory = model(tokens, memory)

Letters: B lanes, T tokens in the segment, M states in memory, S = M + T keys, C width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from segue.config import RELATIVE, Reach, Reading, XLConfig
from segue.errors import InputError
from segue.nn.attention import casting
from segue.nn.block import Block
from segue.nn.dropout import Dropout
from segue.nn.language import LanguageModel, check_lanes
from segue.nn.layout import HOST, SegmentLayout, checked_layout, positions
from segue.nn.mask import causal_mask
from segue.nn.memory import KVMemory, KVSlots, Memory, StateMemory
from segue.nn.positions import RelativeKeys, build_positions, check_places
from segue.nn.stepping import step_of
from segue.nn.vocab import Vocabulary


class TransformerXL(LanguageModel):
    """A causal language model that reads on: each layer also attends to what it remembers of earlier segments."""

    config: XLConfig

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)
        self.positions = build_positions(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        initialise(self, config.init)

    def start(self, *, lanes: int = 1, reach: Reach) -> StateMemory:
        """The memory of lanes that have read nothing yet."""
        check_lanes(lanes)
        if reach.clamp is not None and self.config.encoding not in RELATIVE:
            raise InputError(
                f"clamp {reach.clamp} limits distances, and encoding {self.config.encoding!r} knows none; leave it out"
            )
        held = reach.memory if reach.initial == "zeros" else 0
        table = self.vocabulary.tables[
            0
        ]  # of which a rank may hold a part only: zeros like it would be parts too
        empty = torch.zeros(lanes, held, self.config.width, dtype=table.dtype, device=table.device)
        counts = torch.full((lanes,), held, device=HOST)
        return StateMemory((empty,) * self.config.layers, counts, torch.zeros_like(counts), reach)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """Read a segment (B, T): its hidden states (B, T, C), and the memory to read on with.

        `starts` (B, T) marks the tokens that begin a new document: nothing before them is seen from there on.
        `lengths` (B,) tells how many tokens of each lane are real; hidden states of padding are zero.
        """
        layout = checked_layout(tokens, starts, lengths)
        self._check(memory, tokens)
        memory, layout = self._with_new_documents(memory, layout)
        if isinstance(memory, KVMemory) and self._steps_will_do(memory, layout):
            return self._stepped(tokens, memory, layout)
        places = self._places(memory, layout).T.to(tokens.device)
        hidden = self.dropout(self.positions.embedded(self.vocabulary.embed(tokens.T), places))
        if isinstance(memory, KVMemory):
            memory = self._related(memory.with_room(layout.size), layout.size)
            hidden, _ = self._through(hidden, places, memory, layout, memory.rooms(layout.size))
            extended: Memory = memory.extended(layout)
        else:
            assert isinstance(memory, StateMemory)
            past = [rows.detach().transpose(0, 1) for rows in memory.rows]
            hidden, entered = self._through(hidden, places, memory, layout, past)
            extended = memory.extended([states.transpose(0, 1) for states in entered], layout)
        hidden = self.dropout(hidden).transpose(0, 1)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(tokens.device)[..., None], 0)
        return hidden, extended

    def looks_back(self, reading: Reading) -> int | None:
        """Every layer sees farther than the one below; positions that are counted know the beginning."""
        if self.config.encoding not in (*RELATIVE, "none") and reading.reach.positions == "onward":
            return None
        return reading.overlap(self.config.layers)

    @torch.no_grad()
    def projected(self, memory: Memory) -> KVMemory:
        """The same memory as keys and values: reading on saves their projection while the weights stand still."""
        if isinstance(memory, KVMemory):
            return memory
        rows = []
        for block, states in zip(self.blocks, memory.rows, strict=True):
            assert isinstance(block, Block)
            rows.append(block.attention.project(block.entering(states.transpose(0, 1))).transpose(0, 2))
        return KVMemory(tuple(rows), memory.lengths, memory.seen, memory.reach)

    def _steps_will_do(self, memory: KVMemory, layout: SegmentLayout) -> bool:
        """Whether this is one more token of streams that all see as far back, with nothing to learn."""
        return (
            layout.size == 1
            and layout.lengths is None
            and self.config.encoding in RELATIVE
            and not (self.training or torch.is_grad_enabled() or casting(memory.rows[0]))
            and int(memory.lengths.min()) == memory.size
        )

    def _stepped(self, tokens: Tensor, memory: KVMemory, layout: SegmentLayout) -> tuple[Tensor, Memory]:
        """Read one token of each lane."""
        memory = self._related(memory.with_room(1), 1)
        if not memory.steps:
            pairs = zip(self.blocks, memory.relations, strict=True)
            memory = replace(memory, steps=tuple(step_of(block, relative) for block, relative in pairs))
        assert memory.buffer is not None
        end = memory.end + 1
        keys = min(memory.size + 1, memory.reach.span or end)
        hidden = self.vocabulary.embed(tokens[:, 0])
        for step, keys_values in zip(memory.steps, memory.buffer.storage, strict=True):
            hidden = step(hidden, keys_values[..., end - keys : end, :])
        return hidden[:, None], memory.extended(layout)

    def _through(
        self,
        hidden: Tensor,
        places: Tensor,
        memory: Memory,
        layout: SegmentLayout,
        past: Sequence[Tensor | KVSlots],
    ) -> tuple[Tensor, list[Tensor]]:
        """Through all layers: the last one's output (T, B, C), and what entered each."""
        mask = causal_mask(layout, memory.size, memory.lengths, memory.reach.span, hidden.device)
        known = isinstance(memory, KVMemory) and memory.relations
        relations = known or self._relations(memory.size + layout.size, memory.reach.clamp)
        entered = []
        for layer, block in enumerate(self.blocks):
            hidden = self.positions.entering(layer, hidden, places)
            entered.append(hidden)
            hidden = block(hidden, past[layer], relations[layer], mask)
        return hidden, entered

    def _relations(self, keys: int, clamp: int | None) -> tuple[RelativeKeys | None, ...]:
        """What each layer makes of the distances between S keys."""
        distances = self.positions.distances(keys, clamp)
        return tuple(self.positions.relative_keys(layer, distances) for layer in range(len(self.blocks)))

    def _related(self, memory: KVMemory, size: int) -> KVMemory:
        """The memory with relations for `size` more tokens, and for more of them to come."""
        keys = memory.size + size
        if torch.is_grad_enabled() or self.training:  # they would not last: weights move, dropout differs
            return replace(memory, relations=(), related=0, steps=())
        if memory.related >= keys:
            return memory
        related = max(keys, min(2 * keys, memory.reach.memory + size))
        relations = tuple(
            relative and replace(relative, rows=relative.rows.transpose(0, 1).contiguous().transpose(0, 1))
            for relative in self._relations(related, memory.reach.clamp)
        )  # each head's rows in one piece, like its keys
        return replace(memory, relations=relations, related=related, steps=())

    def _places(self, memory: Memory, layout: SegmentLayout) -> Tensor:
        """(B, T) Where each token stands in its document; for encodings that ask."""
        if self.config.encoding in (*RELATIVE, "none"):
            return torch.empty(0, 0, device=HOST)
        restarting = memory.reach.positions != "onward"
        places = positions(layout, torch.zeros_like(memory.seen) if restarting else memory.seen)
        check_places(places, self.config)
        return places

    def _with_new_documents(self, memory: Memory, layout: SegmentLayout) -> tuple[Memory, SegmentLayout]:
        """Give a fresh memory to the lanes whose first token begins a document."""
        if layout.starts is None:
            return memory, layout
        later = layout.without_first()
        if later.starts is not None and memory.reach.initial == "zeros":
            raise InputError(
                "a memory of zeros can begin at a segment's first token only, and a document starts later in this one; "
                "cut the segment there, or use initial='empty'"
            )
        begun = layout.starts[:, 0]
        if begun.any():
            fresh: Memory = self.start(lanes=layout.lanes, reach=memory.reach)
            if isinstance(memory, KVMemory):
                fresh = self.projected(fresh)
            memory = memory.renewed(begun, fresh.to(memory.rows[0].device))
        return memory, later

    def _check(self, memory: Memory, tokens: Tensor) -> None:
        config = self.config
        row = (2, config.heads, config.head_width) if isinstance(memory, KVMemory) else (config.width,)
        self._check_memory(memory, tokens, config.layers, row)


@torch.no_grad()
def initialise(model: nn.Module, spread: float, projections: float = 0.01) -> None:
    """The published start: weights N(0, spread), norms N(1, spread), projections N(0, 0.01), biases zero."""
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if "norm.weight" in name:
            nn.init.normal_(parameter, 1.0, spread)
        elif "vocabulary" in name and "projections" in name:
            nn.init.normal_(parameter, 0.0, projections)
        elif kind in ("bias", "table_bias", "cluster_bias") or "vocabulary.biases" in name:
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, 0.0, spread)
