"""A reader of streams: tokens in, the distribution of the next token out, at constant memory.

A model without memory (a vanilla Transformer) keeps a window of tokens instead and reads it again for every token. A
reader is a value: `read` and `advance` return another one. Letters: B lanes, T tokens, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from segue.config import Reading
from segue.errors import InputError
from segue.nn.engine import Engine
from segue.nn.language import LanguageModel
from segue.nn.memory import Memory


@dataclass(frozen=True, eq=False)
class Reader:
    """An engine, what it remembers, and its last hidden state."""

    engine: Engine[Any]
    reading: Reading
    memory: Memory
    hidden: Tensor | None = None  # (B, C) after the newest token; None before the first
    window: Tensor | None = None  # (B, T) the newest tokens, for a model without memory

    @torch.no_grad()
    def read(self, tokens: Tensor) -> "tuple[Reader, Tensor]":
        """Read tokens (B, T): the new reader, and the cross-entropy of each but a stream's first, (B, T or T - 1)."""
        tokens = tokens.to(self.engine.device, non_blocking=True)
        if self.window is not None:
            return self._read_window(tokens)
        reader, surprises = self, []
        for piece in tokens.split(self.reading.chunk, dim=1):
            hidden, memory = self.engine(piece, reader.memory)
            before = (
                hidden[:, :-1]
                if reader.hidden is None
                else torch.cat([reader.hidden[:, None], hidden[:, :-1]], 1)
            )
            targets = piece[:, 1:] if reader.hidden is None else piece
            surprises.append(self.engine.nats(before, targets))
            reader = replace(reader, memory=memory, hidden=hidden[:, -1])
        return reader, torch.cat(surprises, dim=1)

    def advance(self, tokens: Tensor) -> "Reader":
        """Read one token of each lane (B,), without its cross-entropy: the output layer is not computed."""
        tokens = tokens[:, None].to(self.engine.device, non_blocking=True)
        if self.window is not None:
            return self._moved(tokens)
        hidden, memory = self.engine(tokens, self.memory)
        return replace(self, memory=memory, hidden=hidden[:, -1])

    def logprobs(self) -> Tensor:
        """(B, V) Log-probabilities of the next token."""
        if self.hidden is None:
            raise InputError(
                "nothing was read yet, so there is no next token to predict; feed some text first"
            )
        return self.engine.logprobs(self.hidden)

    def select(self, index: list[int]) -> "Reader":
        """These lanes; a lane may be taken several times, to continue it in several ways."""
        chosen = torch.tensor(index).to(self.engine.device, non_blocking=True)
        hidden = None if self.hidden is None else self.hidden[chosen]
        window = None if self.window is None else self.window[chosen]
        return replace(self, memory=self.memory.select(index), hidden=hidden, window=window)

    def _read_window(self, tokens: Tensor) -> "tuple[Reader, Tensor]":
        """Read token by token, each with the window before it."""
        reader, surprises = self, []
        for token in tokens.split(1, dim=1):
            if reader.hidden is not None:
                surprises.append(self.engine.nats(reader.hidden[:, None], token))
            reader = reader._moved(token)
        nats = (
            torch.cat(surprises, dim=1)
            if surprises
            else tokens.new_zeros(len(tokens), 0, dtype=torch.float32)
        )
        return reader, nats

    def _moved(self, token: Tensor) -> "Reader":
        """The window moved on by one token (B, 1), and read anew."""
        assert self.window is not None
        window = torch.cat([self.window, token], dim=1)[:, -self.reading.segment :]
        states, _ = self.engine(window, self.memory)
        return replace(self, hidden=states[:, -1], window=window)


def start_reader(model: LanguageModel | Engine[Any], reading: Reading, lanes: int = 1) -> Reader:
    """A reader that has read nothing."""
    engine = model.frozen()
    memory = engine.start(lanes=lanes, reach=reading.reach)
    if reading.reach.memory:
        return Reader(engine, reading, memory)
    empty = torch.zeros(lanes, 0, dtype=torch.int64, device=engine.device)
    return Reader(engine, reading, memory, window=empty)
