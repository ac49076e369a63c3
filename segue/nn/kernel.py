"""Kernel attention: a language model whose memory is a state of constant size, with unlimited reach.

Softmax's exp(q·k) becomes φ(q)·φ(k). Sums over keys then need no keys: S = Σ φ(k) vᵀ and z = Σ φ(k) are enough,
    out = φ(q) S / φ(q) z
(Katharopoulos 2020 with φ = elu + 1; Choromanski 2021, "Performer", with random features of the exponential).

Letters: B lanes, T tokens in the segment, H heads, D head width, F features, C width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import KernelConfig, Reach, Reading
from segue.errors import InputError
from segue.nn.block import Block
from segue.nn.dropout import Dropout
from segue.nn.kernel_chunk import ChunkMask, chunk_masks, kernel_chunk
from segue.nn.language import LanguageModel, check_lanes
from segue.nn.layout import HOST, checked_layout, positions
from segue.nn.memory import KernelMemory, Memory
from segue.nn.performer import orthogonal, performer_chunk, performer_exponents
from segue.nn.positions import sinusoids
from segue.nn.vocab import Vocabulary
from segue.nn.xl import initialise


class KernelModel(LanguageModel):
    """A causal language model with kernel attention."""

    config: KernelConfig

    def __init__(self, config: KernelConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)
        self.blocks = nn.ModuleList(KernelBlock(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        initialise(self, config.init)
        for name, weight in self.named_parameters():
            if name.endswith("directions"):  # drawn once, kept with the weights, never trained
                nn.init.normal_(weight.requires_grad_(False))

    def start(self, *, lanes: int = 1, reach: Reach) -> KernelMemory:
        """The memory of lanes that have read nothing yet: sums over no tokens."""
        check_lanes(lanes)
        if reach.clamp is not None or reach.span is not None or reach.pinned:
            raise InputError(
                "clamp and span limit how far attention looks back, pinned rows stay in its sight, "
                "and kernel attention keeps no keys; "
                "leave them out"
            )
        table = self.vocabulary.tables[0]
        shape = lanes, min(1, reach.memory), *self._row
        empty = torch.zeros(shape, dtype=table.dtype, device=table.device)
        nothing = torch.zeros(lanes, dtype=torch.int64, device=HOST)
        return KernelMemory((empty,) * self.config.layers, nothing, nothing, reach)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, KernelMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), zero in padding, and the memory to read on with."""
        layout = checked_layout(tokens, starts, lengths)
        self.check_memory(memory, tokens, self.config.layers, self._row)
        assert isinstance(memory, KernelMemory)
        hidden = self.vocabulary.embed(tokens)
        if self.config.encoding == "sinusoidal":
            onward = memory.reach.positions == "onward"
            places = positions(layout, memory.seen if onward else torch.zeros_like(memory.seen))
            hidden = hidden + sinusoids(
                places.to(tokens.device, non_blocking=True), self.config.width, hidden.dtype
            )
        hidden = self.dropout(hidden)
        masks = chunk_masks(layout, tokens.device)
        states = []
        for layer, block in enumerate(self.blocks):
            hidden, state = block(hidden, memory.state(layer).detach(), masks)
            states.append(state)
        hidden = self.dropout(hidden)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(tokens.device, non_blocking=True)[..., None], 0)
        return hidden, memory.advanced(states, layout)

    def looks_back(self, reading: Reading) -> int | None:
        """The sums depend on everything that was read, and positions that go on, on how much it was."""
        counts = self.config.encoding == "sinusoidal" and reading.reach.positions == "onward"
        return None if reading.reach.memory or counts else reading.segment

    @property
    def _row(self) -> tuple[int, ...]:
        config = self.config
        level = config.features == "performer"
        return config.heads, config.feature_count + level, config.head_width + 1


class KernelBlock(Block):
    """A Transformer's block whose attention is a kernel's."""

    def __init__(self, config: KernelConfig) -> None:
        super().__init__(config)
        self.features = config.features
        if config.features == "performer":
            self.directions = nn.Parameter(torch.empty(config.feature_count, config.head_width))
        self.folded: Tensor | None = None  # the orthogonal rows themselves, where they do not change any more

    def forward(self, hidden: Tensor, state: Tensor, masks: "list[ChunkMask]") -> Any:  # type: ignore[override]
        """The layer's output (B, T, C), and its state (B, H, F, D + 1) after the segment."""
        query, key, value = self._projected(self.normed_input(hidden))
        attend = kernel_chunk if self.features == "elu" else performer_chunk
        gathered = []
        for mask in masks:
            chunk = slice(mask.begin, mask.end)
            out, state = attend(query[:, chunk], key[:, chunk], value[:, chunk], state, mask)
            gathered.append(out)
        attended = self.attention.out(torch.cat(gathered, dim=1).flatten(2))
        hidden = self._added(hidden, attended, self.attention_norm)
        fed = self.feed_forward(self.feed_forward_norm(hidden) if self.pre else hidden)
        return self._added(hidden, fed, self.feed_forward_norm), state

    def _projected(self, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ(q), φ(k) (B, T, H, F), and the values with a column of ones (B, T, H, D + 1), which sums up z.

        Of a Performer's keys, the logarithm of φ(k): its exponential may be too large or too small for a float.
        """
        query = self.attention.query(normed).unflatten(-1, (self.attention.heads, -1))
        key, value = self.attention.key_value(normed).unflatten(-1, (2, self.attention.heads, -1)).unbind(2)
        value = F.pad(value, (0, 1), value=1.0)
        if self.features == "elu":
            return F.elu(query) + 1, F.elu(key) + 1, value
        scale = self.attention.scale**0.5  # softmax's temperature, half of it to each side
        rows = orthogonal(self.directions) if self.folded is None else self.folded
        exponents = performer_exponents(query * scale, rows)
        largest = exponents.amax(dim=-1, keepdim=True).detach()  # what is the same for all keys, z takes away
        return (exponents - largest).exp(), performer_exponents(key * scale, rows), value
