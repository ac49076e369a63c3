"""Engines: a model whose weights do not change, made ready to read with. No gradient, no dropout.

    engine = model.frozen()
    memory = engine.start(lanes=4, reach=Reach(memory=1600))
    hidden, memory = engine(tokens, memory)

Sessions, evaluation, scoring, beam search and RECL know this interface alone, whatever the model is made of.
Letters: B lanes, T tokens in the segment, C width, V vocabulary, K tokens.
"""

from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from segue.config import KVCache, Reading
from segue.errors import InputError
from segue.nn.memory import Memory

Model = TypeVar("Model", bound=nn.Module)


class Engine(Generic[Model]):
    """Any model in evaluation mode; a model in training is read through a twin that shares its weights."""

    def __init__(self, model: Model) -> None:
        self.model = twin(model) if model.training else model

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def device(self) -> torch.device:
        home: torch.device = self.model.vocabulary.tables[0].device  # type: ignore[union-attr,index]
        return home

    @torch.no_grad()
    def start(self, *given: Any, **settings: Any) -> Any:
        """The memory before anything was read, as the model's own `start`."""
        return self.model.start(*given, **settings)  # type: ignore[operator]

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, memory: Any, *, starts: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Read a segment (B, T): its hidden states (B, T, C), and the memory to read on with."""
        self._check_still()
        marks = {} if starts is None else {"starts": starts}
        read: tuple[Tensor, Any] = self.model(tokens, memory, lengths=lengths, **marks)
        return read

    def project(self, memory: Memory) -> Memory:
        """A memory of the model's own training as one that this engine reads on with."""
        return memory

    @torch.no_grad()
    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(B, T) The cross-entropy of each target, -log p, in nats, unreduced."""
        nats: Tensor = self.model.nats(hidden, targets)  # type: ignore[operator]
        return nats

    @torch.no_grad()
    def logprobs(self, hidden: Tensor) -> Tensor:
        """(B, T, V) The log-probabilities of every token."""
        logprobs: Tensor = self.model.logprobs(hidden)  # type: ignore[operator]
        return logprobs

    @torch.no_grad()
    def likeliest(self, hidden: Tensor, count: int, never: int) -> tuple[Tensor, Tensor]:
        """(B, K) The largest log-probabilities behind states (B, C), the largest first, and their tokens.

        K is `count`, or V if that is less. The token `never` has the log-probability -inf.
        """
        logprobs = self.logprobs(hidden)
        logprobs[:, never] = float("-inf")
        values, tokens = logprobs.topk(min(count, logprobs.size(1)))
        return values, tokens

    def looks_back(self, reading: Reading) -> int | None:
        """How many tokens back a hidden state may depend on; None if all the way to the beginning."""
        back: int | None = self.model.looks_back(reading)  # type: ignore[operator]
        return back

    def check(self, tokens: Tensor) -> None:
        """Refuse token ids that the vocabulary does not have; call it where data enters."""
        self.model.check(tokens)  # type: ignore[operator]

    def _check_still(self) -> None:
        if self.model.training:
            raise InputError(
                "the model is in training mode again; call model.frozen() once more, or model.eval()"
            )

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> "Engine[Model]":
        """Itself: whoever wants an engine may be given a model or an engine."""
        if int8 or kv_cache != "exact":
            rounded: Engine[Model] = self.model.frozen(int8=int8, kv_cache=kv_cache)  # type: ignore[operator]
            return rounded
        return self


def twin(model: Model) -> Model:
    """A copy in evaluation mode with the very same weights."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return deepcopy(model, shared).eval()


def refuse_rounding(model: nn.Module, int8: bool, kv_cache: KVCache) -> None:
    """Raise an error if a model that has only an exact engine is asked for another."""
    if int8 or kv_cache != "exact":
        wanted = "int8" if int8 else f"a KV cache in {kv_cache}"
        raise InputError(f"{wanted} is for Transformer-XL; a {type(model).__name__} has no such engine")
