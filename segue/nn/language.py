"""The interface of every language model: reading a segment turns one memory into the next.

    hidden, memory = model(tokens, memory)

Letters: B lanes, T tokens in the segment, C width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from segue.config import KVCache, LanguageConfig, Reach, Reading
from segue.errors import InputError
from segue.nn.engine import Engine, refuse_rounding
from segue.nn.memory import Memory
from segue.nn.vocab import Vocabulary


class LanguageModel(nn.Module):
    """A causal model between the two ends of a vocabulary."""

    config: LanguageConfig
    vocabulary: Vocabulary

    @property
    def device(self) -> torch.device:
        home: torch.device = self.vocabulary.tables[0].device
        return home

    def start(self, *, lanes: int = 1, reach: Reach) -> Memory:
        """The memory of lanes that have read nothing yet."""
        raise NotImplementedError

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """Read a segment (B, T): its hidden states (B, T, C), and the memory to read on with."""
        raise NotImplementedError

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> "Engine[Any]":
        """The engine that reads with these weights. While it is in use they must not change."""
        refuse_rounding(self, int8, kv_cache)
        return Engine(self)

    def looks_back(self, reading: Reading) -> int | None:
        """How many tokens back a hidden state may depend on; None if all the way to the beginning."""
        raise NotImplementedError

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(B, T) The cross-entropy of each target, -log p, in nats, unreduced."""
        return self.vocabulary.nats(hidden, targets)

    def logprobs(self, hidden: Tensor) -> Tensor:
        """(B, T, V) The log-probabilities of every token."""
        return self.vocabulary.logprobs(hidden)

    def check(self, tokens: Tensor) -> None:
        """Refuse token ids that the vocabulary does not have; call it where data enters."""
        self.vocabulary.check(tokens)

    def check_memory(
        self,
        memory: Memory,
        tokens: Tensor,
        layers: int,
        row: tuple[int, ...],
        kind: torch.dtype | None = None,
    ) -> None:
        """Refuse a memory of another model, of another number of lanes, or that lies elsewhere.

        Its rows are of this kind; None: the model's.
        """
        shapes = memory.row_shapes
        if shapes != [row] * layers:
            raise InputError(
                f"this model's memory has {layers} layers of rows {row}; found {len(shapes)} of "
                f"{sorted(set(shapes))}; begin with model.start()"
            )
        self.check_place(memory, tokens, kind)

    def check_place(self, memory: Memory, tokens: Tensor, kind: torch.dtype | None = None) -> None:
        """Refuse a memory of another number of lanes, or that lies elsewhere than model and tokens."""
        if memory.lanes != len(tokens):
            raise InputError(
                f"the memory has {memory.lanes} lanes and the tokens {len(tokens)}; "
                "start as many lanes as you read, or use memory.select() and join()"
            )
        kind, home = kind or self.vocabulary.tables[0].dtype, self.device
        if not memory.device == tokens.device == home or (
            memory.dtype != kind and not torch.is_autocast_enabled(home.type)
        ):
            raise InputError(
                f"the memory is {memory.dtype} on {memory.device}, the model {kind} on {home}, the tokens on "
                f"{tokens.device}; use .to(device), or begin with model.start()"
            )


def check_lanes(lanes: int) -> None:
    if not isinstance(lanes, int) or isinstance(lanes, bool) or lanes < 1:
        raise InputError(f"lanes should be 1 or more; found {lanes}")
