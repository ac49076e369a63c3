"""The RNN encoder-decoder: one state, or attention over all of them (Cho, Sutskever, Bahdanau, Luong).

It reads on as any other model: `memory = model.start(source, lengths)`, `hidden, memory = model(target, memory)`.

Letters: B sentences, S tokens of the source, T of the target, N layers, C width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from segue.config import RecurrentSeq2SeqConfig
from segue.errors import InputError
from segue.nn.dropout import Dropout
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.layout import HOST, checked_layout
from segue.nn.recurrent import STATES, build_cells, run, run_both_ways
from segue.nn.vocab import Vocabulary, source_vocabulary


@dataclass(frozen=True, eq=False)
class RecurrentMemory:
    """The decoder's state, and the encoder's outputs that it may attend to."""

    state: tuple[Tensor, ...]  # (N, B, C) each: one, or hidden and cell of an LSTM
    source: Tensor  # (B, S, C): what the encoder gave out, zero in padding
    padded: Tensor  # (B, S)
    seen: Tensor  # (B,) tokens of the target read so far

    @property
    def lanes(self) -> int:
        return self.source.size(0)

    @property
    def lengths(self) -> Tensor:
        """One state is all that is held."""
        return torch.ones_like(self.seen)

    def select(self, index: Tensor | Sequence[int]) -> Self:
        """These sentences in this order."""
        chosen = torch.as_tensor(index, device=HOST)
        there = chosen.to(self.source.device, non_blocking=True)
        return replace(
            self,
            state=tuple(part.index_select(1, there) for part in self.state),
            source=self.source[there],
            padded=self.padded[there],
            seen=self.seen[chosen],
        )


class SourceAttention(nn.Module):
    """Luong's attention to the source. It has no weights; as a module, it can be observed by hooks."""

    def forward(self, query: Tensor, memory: RecurrentMemory) -> Tensor:
        """(B, T, S) The attention weights of queries (B, T, C)."""
        scores = query @ memory.source.mT
        whole = memory.padded.all(dim=1, keepdim=True)  # a source of padding alone is zero: it may be seen
        return scores.masked_fill((memory.padded & ~whole)[:, None], float("-inf")).softmax(dim=-1)


class RecurrentSeq2Seq(EncoderDecoder):
    """Without attention, the decoder starts from the encoder's last state and also gets it as input at every step."""

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config, bias=False)
        if config.source_vocab:
            self.source_vocabulary = source_vocabulary(config)
        width, inputs = config.width, config.width if config.attention else 2 * config.width
        self.encoder = build_cells(
            config.cell, width, width, config.layers, config.dropout, bidirectional=config.bidirectional
        )
        self.decoder = build_cells(config.cell, inputs, width, config.layers, config.dropout)
        if config.attention:
            self.attention = SourceAttention()
            self.asking = nn.Linear(width, width, bias=False)
            self.mixing = nn.Linear(2 * width, width, bias=False)
        self.dropout = Dropout(config.dropout)
        for name, weight in self.named_parameters():
            if "tables" in name or "cluster_table" in name:
                nn.init.normal_(weight, 0.0, width**-0.5)
            elif "projections" in name:
                nn.init.xavier_uniform_(weight)
            elif "vocabulary" in name:
                nn.init.zeros_(weight)  # biases

    def start(self, source: Tensor, lengths: Tensor | None = None) -> RecurrentMemory:
        """The memory of a decoder that has read its sources (B, S) and nothing of a target."""
        layout = checked_layout(source, None, lengths)
        vocabulary = self.source_vocabulary if self.config.source_vocab else self.vocabulary
        inputs = self.dropout(vocabulary.embed(source))
        if self.config.bidirectional:
            outputs, state = run_both_ways(self.encoder, inputs, layout)
        else:
            nothing = inputs.new_zeros(self.config.layers, len(source), self.config.width)
            outputs, state = run(self.encoder, inputs, (nothing,) * STATES[self.config.cell], layout)
        padded = layout.padded
        padded = torch.zeros(source.shape, dtype=torch.bool) if padded is None else padded
        seen = torch.zeros(len(source), dtype=torch.int64, device=HOST)
        return RecurrentMemory(state, outputs, padded.to(source.device, non_blocking=True), seen)

    def forward(
        self, target: Tensor, memory: RecurrentMemory, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentMemory]:
        """Read on in targets (B, T): hidden states (B, T, C), zero in padding, and the memory to read on with."""
        layout = checked_layout(target, None, lengths)
        if memory.lanes != len(target):
            raise InputError(
                f"the memory has {memory.lanes} sentences and the target {len(target)}; "
                "start as many as you read, or use memory.select()"
            )
        inputs = self.dropout(self.vocabulary.embed(target))
        if not self.config.attention:
            inputs = torch.cat([inputs, self._last_outputs(memory)[:, None].expand_as(inputs)], dim=-1)
        hidden, state = run(self.decoder, inputs, memory.state, layout)
        if self.config.attention:
            context = self.attention(self.asking(hidden), memory) @ memory.source
            hidden = self.mixing(torch.cat([hidden, context], dim=-1)).tanh()
        hidden = self.dropout(hidden)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(target.device, non_blocking=True)[..., None], 0)
        return hidden, replace(memory, state=state, seen=memory.seen + layout.counts)

    def _last_outputs(self, memory: RecurrentMemory) -> Tensor:
        """(B, C) What the encoder gave out at the source's end; its backward half, at the beginning."""
        newest = (memory.source.size(1) - 1 - memory.padded.sum(dim=1)).clamp(min=0)
        outputs = memory.source[torch.arange(memory.lanes, device=memory.source.device), newest]
        if not self.config.bidirectional:
            return outputs
        half = self.config.width // 2
        return torch.cat([outputs[:, :half], memory.source[:, 0, half:]], dim=-1)
