"""What attention looked at: the weights of every layer and head, recorded while a model reads.

    with recording(model) as seen:
        model(tokens, memory)
    seen["blocks.0.attention"]      # (B, H, T, S)

Letters: B lanes, H heads, T queries, S keys.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from segue.nn.attention import Attention


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Weights by the name of the attention that they are of; of several calls, the last one's."""
    seen: dict[str, Tensor] = {}
    hooks = [
        part.register_forward_hook(partial(_record, seen, name))
        for name, part in model.named_modules()
        if isinstance(part, Attention)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def _record(
    seen: dict[str, Tensor], name: str, attention: Attention, given: tuple[Any, ...], _gathered: Tensor
) -> None:
    hidden, keys_values, relation, sight = given
    query = attention.query(hidden).unflatten(-1, (attention.heads, -1))
    seen[name] = attention.weights(query, keys_values[0], relation, sight)
