"""What all encoder-decoder models have in common, Transformer or recurrent.

Letters: B sentences, S tokens of the source, T of the target, V vocabulary.
"""

from typing import Any, Self

from torch import Tensor, nn

from segue.config import KVCache
from segue.nn.engine import Engine, refuse_rounding
from segue.nn.vocab import Vocabulary


class EncoderDecoder(nn.Module):
    """A decoder that reads on in a target: `start(source)` gives its memory, the call reads."""

    config: Any
    vocabulary: Vocabulary

    def start(self, source: Tensor, lengths: Tensor | None = None) -> Any:
        """The memory of a decoder that has read its sources (B, S) and nothing of a target."""
        raise NotImplementedError

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> Engine[Self]:
        """The engine that reads with these weights. While it is in use they must not change."""
        refuse_rounding(self, int8, kv_cache)
        return Engine(self)

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(B, T) The cross-entropy of each target, -log p, in nats, unreduced."""
        return self.vocabulary.nats(hidden, targets)

    def logprobs(self, hidden: Tensor) -> Tensor:
        """(B, T, V) The log-probabilities of every token."""
        return self.vocabulary.logprobs(hidden)
