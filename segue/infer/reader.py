"""A model reading on: tokens go in, the distribution of the next one comes out, at constant memory for ever.

A model that carries no memory (a vanilla Transformer) keeps a window of tokens instead and reads it anew; whoever
uses a reader need not know. A reader is a value: `read` gives another one. Letters: B lanes, T tokens, V vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from segue.config import Reading
from segue.errors import InputError
from segue.nn.language import LanguageModel
from segue.nn.memory import Memory


@dataclass(frozen=True, eq=False)
class Reader:
    """A model, what it remembers, and its last hidden state."""

    model: LanguageModel
    reading: Reading
    memory: Memory
    hidden: Tensor | None = None  # (B, C) after the newest token; None before the first
    window: Tensor | None = None  # (B, T) the newest tokens, for a model without memory

    @torch.no_grad()
    def read(self, tokens: Tensor) -> "tuple[Reader, Tensor]":
        """Read on (B, T): the reader afterwards, and the nats of each token but a stream's first, (B, T or T - 1)."""
        tokens = tokens.to(self.model.device)
        if self.window is not None:
            return self._read_window(tokens)
        reader, surprises = self, []
        for piece in tokens.split(self.reading.at_once, dim=1):
            hidden, memory = self.model(piece, reader.memory)
            before = (
                hidden[:, :-1]
                if reader.hidden is None
                else torch.cat([reader.hidden[:, None], hidden[:, :-1]], 1)
            )
            targets = piece[:, 1:] if reader.hidden is None else piece
            surprises.append(self.model.nats(before, targets))
            reader = replace(reader, memory=memory, hidden=hidden[:, -1])
        return reader, torch.cat(surprises, dim=1)

    def logprobs(self) -> Tensor:
        """(B, V) Of the next token."""
        if self.hidden is None:
            raise InputError("nothing was read yet, so there is nothing to go on from; feed some text first")
        with torch.no_grad():
            return self.model.logprobs(self.hidden)

    def select(self, index: list[int]) -> "Reader":
        """These lanes; a lane may be taken several times, to go on in several ways."""
        hidden = None if self.hidden is None else self.hidden[index]
        window = None if self.window is None else self.window[index]
        return replace(self, memory=self.memory.select(index), hidden=hidden, window=window)

    def _read_window(self, tokens: Tensor) -> "tuple[Reader, Tensor]":
        """Token by token, each seen with the window before it."""
        assert self.window is not None
        window, hidden, surprises = self.window, self.hidden, []
        for token in tokens.split(1, dim=1):
            if hidden is not None:
                surprises.append(self.model.nats(hidden[:, None], token))
            window = torch.cat([window, token], dim=1)[:, -self.reading.segment :]
            states, _ = self.model(window, self.memory)
            hidden = states[:, -1]
        nats = (
            torch.cat(surprises, dim=1)
            if surprises
            else tokens.new_zeros(len(tokens), 0, dtype=torch.float32)
        )
        return replace(self, hidden=hidden, window=window), nats


def start_reader(model: LanguageModel, reading: Reading, lanes: int = 1) -> Reader:
    """A reader that has read nothing."""
    memory = model.projected(model.start(lanes=lanes, reach=reading.reach))
    if reading.reach.memory:
        return Reader(model, reading, memory)
    empty = torch.zeros(lanes, 0, dtype=torch.int64, device=model.device)
    return Reader(model, reading, memory, window=empty)
