"""Transformer-XL: reading a segment turns one memory into the next.

    hidden, memory = model(tokens, memory)

This is the model as it is trained, with hidden states as its memory; `frozen.py` is the engine that reads fast.
Letters: B lanes, T tokens in the segment, M states in memory, S = M + T keys, C width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from segue.config import Reach, Reading, XLConfig
from segue.errors import InputError
from segue.nn.block import Block
from segue.nn.dropout import Dropout
from segue.nn.frozen import FrozenXL
from segue.nn.language import LanguageModel, check_lanes
from segue.nn.layout import HOST, SegmentLayout, checked_layout, positions
from segue.nn.mask import causal_mask
from segue.nn.memory import Memory, StateMemory
from segue.nn.positions import Relative, build_positions, check_places
from segue.nn.vocab import Vocabulary


class TransformerXL(LanguageModel):
    """A causal language model that reads on: each layer also attends to its own states of earlier segments."""

    config: XLConfig

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)
        self.positions = build_positions(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        initialise(self, config.init)

    def frozen(self, *, int8: bool = False) -> FrozenXL:
        """The engine that reads with these weights. While it is in use they must not change."""
        return FrozenXL(self, int8=int8)

    def start(self, *, lanes: int = 1, reach: Reach) -> StateMemory:
        """The memory of lanes that have read nothing yet."""
        check_lanes(lanes)
        if reach.clamp is not None and not self.config.position_encoding.relative:
            raise InputError(
                f"clamp {reach.clamp} limits distances, and encoding {self.config.encoding!r} knows none; leave it out"
            )
        held = reach.memory if reach.initial == "zeros" else 0
        table = self.vocabulary.tables[
            0
        ]  # a rank may hold a part of it only: zeros like it would be parts too
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
    ) -> tuple[Tensor, StateMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), and the memory to read on with.

        `starts` (B, T) marks the tokens that begin a new document: nothing before them is attended to from there on.
        `lengths` (B,) tells how many tokens of each lane are real; hidden states of padding are zero.
        """
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
        places = self.token_positions(memory, layout).T.to(tokens.device)
        hidden = self.dropout(self.positions.embedded(self.vocabulary.embed(tokens.T), places))
        mask = causal_mask(layout, memory.size, memory.lengths, memory.reach.span, hidden.device)
        relative = self.relative_keys(memory.size + layout.size, memory.reach.clamp)
        inputs = []
        for layer, block in enumerate(self.blocks):
            hidden = self.positions.layer_input(layer, hidden, places)
            inputs.append(hidden.transpose(0, 1))
            hidden = block(hidden, memory.rows[layer].detach().transpose(0, 1), relative[layer], mask)
        hidden = self.dropout(hidden).transpose(0, 1)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(tokens.device)[..., None], 0)
        return hidden, memory.extended(inputs, layout)

    def looks_back(self, reading: Reading) -> int | None:
        """Every layer sees farther than the one below; positions that are counted know the beginning."""
        if self.config.position_encoding.counts and reading.reach.positions == "onward":
            return None
        return reading.overlap(self.config.layers)

    def relative_keys(self, keys: int, clamp: int | None) -> tuple[Relative | None, ...]:
        """How each layer's attention knows the distances between S keys; None if it does not."""
        distances = self.positions.distances(keys, clamp, self.vocabulary.tables[0])
        return tuple(self.positions.relative_keys(layer, distances) for layer in range(len(self.blocks)))

    def token_positions(self, memory: Memory, layout: SegmentLayout) -> Tensor:
        """(B, T) Where each token stands in its document; empty for encodings that do not count."""
        if not self.config.position_encoding.counts:
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
