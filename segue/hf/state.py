"""What a stream carries from one call of a Hugging Face model to the next, and how a call reads on with it.

However a stream is cut into calls, every token gets the same prediction. With memory, each layer sees a span of keys;
a model without memory reads, for each token, the segment that ends with it.
Letters: B lanes, T tokens of the call, C width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segue.config import Reading
from segue.errors import InputError
from segue.nn.kv_memory import KVMemory
from segue.nn.memory import Memory

Reads = Callable[..., tuple[Tensor, Any]]
"""A model in training, or an engine."""


@dataclass(frozen=True, eq=False)
class SegueState:
    """A memory, of constant size; for a model without memory, the newest tokens of each lane."""

    memory: Memory
    window: Tensor | None = None  # (B, W) the newest tokens, each lane's at its beginning
    held: Tensor | None = None  # (B,) how many of them are the lane's own

    @property
    def lanes(self) -> int:
        return self.memory.lanes

    @property
    def from_engine(self) -> bool:
        """Whether it was read without gradient, by an engine that holds keys and values."""
        return isinstance(self.memory, KVMemory)

    def select(self, index: Tensor) -> "SegueState":
        """These lanes in this order: for beams. A lane may be taken twice."""
        window = None if self.window is None else self.window[index.to(self.window.device)]
        held = None if self.held is None else self.held[index.cpu()]
        return replace(self, memory=self.memory.select(index.cpu()), window=window, held=held)


class Aligned(NamedTuple):
    """Tokens of each lane from its first place on, with padding behind them."""

    tokens: Tensor  # (B, T)
    lengths: Tensor | None  # (B,) on the CPU; None: there is no padding
    first: Tensor | None = None  # (B,) where each lane's tokens began

    def put_back(self, hidden: Tensor) -> Tensor:
        """Hidden states (B, T, C) in the places where their tokens were; zero in padding."""
        if self.first is None:
            return hidden
        places = torch.arange(hidden.size(1), device=hidden.device) - self.first[:, None]
        back = hidden.gather(1, places.clamp(min=0)[..., None].expand_as(hidden))
        return back.masked_fill((places < 0)[..., None], 0)


def aligned(tokens: Tensor, mask: Tensor | None) -> Aligned:
    """Tokens (B, T) with a mask (B, T) of 1 and 0, whose padding may lie before them or behind them."""
    if mask is not None and mask.shape != tokens.shape:
        raise InputError(
            f"attention_mask should have the shape of the tokens, {tuple(tokens.shape)}; found {tuple(mask.shape)}"
        )
    if mask is None or bool(mask.all()):
        return Aligned(tokens, None)
    real = mask.bool()
    lengths, first = real.sum(dim=1), real.int().argmax(dim=1)
    steps = torch.arange(tokens.size(1), device=tokens.device)
    inside = (steps >= first[:, None]) & (steps < (first + lengths)[:, None])
    if not torch.equal(inside, real):
        raise InputError("attention_mask has gaps: padding should lie before a text or behind it, not inside")
    index = (first[:, None] + steps).clamp(max=tokens.size(1) - 1)
    moved = tokens.gather(1, index).masked_fill(steps >= lengths[:, None], 0)
    return Aligned(moved, lengths.cpu(), first)


def read_on(model: Reads, batch: Aligned, state: SegueState, reading: Reading) -> tuple[Tensor, SegueState]:
    """Hidden states (B, T, C) of a batch, and the state behind it."""
    if state.window is not None:
        return _read_windows(model, batch, state, reading)
    memory, hidden = state.memory, []
    for begin in range(0, batch.tokens.size(1), reading.chunk):
        piece = batch.tokens[:, begin : begin + reading.chunk]
        states, memory = model(piece, memory, lengths=_part(batch.lengths, begin, piece.size(1)))
        hidden.append(states)
    return torch.cat(hidden, dim=1), replace(state, memory=memory)


def _read_windows(
    model: Reads, batch: Aligned, state: SegueState, reading: Reading
) -> tuple[Tensor, SegueState]:
    """Without memory: as many tokens at once as still fit into a segment, then one by one."""
    tokens, begin, hidden = batch.tokens, 0, []
    while begin < tokens.size(1):
        assert state.held is not None
        room = reading.segment - int(state.held.max())
        piece = tokens[:, begin : begin + max(1, room)]
        counts = _part(batch.lengths, begin, piece.size(1))
        counts = torch.full((len(piece),), piece.size(1)) if counts is None else counts
        state = _moved(state, piece, counts, reading.segment)
        assert state.window is not None and state.held is not None  # noqa: PT018
        read, _ = model(state.window, state.memory, lengths=state.held)
        places = (state.held - counts)[:, None] + torch.arange(piece.size(1))
        places = places.clamp(max=read.size(1) - 1).to(read.device)
        hidden.append(read.gather(1, places[..., None].expand(-1, -1, read.size(2))))
        begin += piece.size(1)
    return torch.cat(hidden, dim=1), state


def _moved(state: SegueState, piece: Tensor, counts: Tensor, segment: int) -> SegueState:
    """The windows with each lane's first `counts` (B,) tokens of a piece (B, T) behind them, a segment at most."""
    assert state.window is not None and state.held is not None  # noqa: PT018
    rows = zip(state.window, state.held.tolist(), piece, counts.tolist(), strict=True)
    lanes = [torch.cat([old[:held], new[:count]])[-segment:] for old, held, new, count in rows]
    window = torch.nn.utils.rnn.pad_sequence(lanes, batch_first=True)
    window = window if window.size(1) else window.new_zeros(len(lanes), 1)
    return replace(state, window=window, held=torch.tensor([len(lane) for lane in lanes]))


def _part(lengths: Tensor | None, begin: int, size: int) -> Tensor | None:
    """How many tokens of each lane lie among `size` tokens from `begin` on; None if all of them do."""
    if lengths is None:
        return None
    part = (lengths - begin).clamp(0, size)
    return None if bool((part == size).all()) else part
