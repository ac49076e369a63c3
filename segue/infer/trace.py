"""Attention weights of every layer and head, recorded while a model reads.

    with recording(model) as weights:
        model(tokens, memory)
    weights["blocks.0.attention"]      # (B, H, T, S)

The steps of a Universal Transformer are named as layers are, in the order of its calls: blocks.0, blocks.1, and so on.

Letters: B lanes, H heads, T queries, S keys.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from segue.config import StepsConfig
from segue.nn.attention import Attention, attention_scores, attention_weights
from segue.nn.mask import AttentionMask
from segue.nn.positions import Relative, Rotation
from segue.nn.recurrent_seq2seq import SourceAttention

TERMS = {
    "content": "(a) query and key",
    "content and distance": "(b) query and distance",
    "content bias": "(c) key alone (bias u)",
    "distance bias": "(d) distance alone (bias v)",
}
"""The four terms of Transformer-XL's attention scores."""

Kind = TypeVar("Kind")


def recording(model: nn.Module) -> AbstractContextManager[dict[str, Tensor]]:
    """Attention weights by the module's name; of several calls in this thread, those of the last.

    The attention of a recurrent decoder has one head.
    """
    return _recording(model, {Attention: partial(_seen, _weights), SourceAttention: _one_head})


def recording_terms(model: nn.Module) -> AbstractContextManager[dict[str, dict[str, Tensor]]]:
    """The four terms of the scaled scores, whose sum softmax turns into weights. Masked keys are -inf.

    Attention without relative positions has the first term alone.
    """
    return _recording(model, {Attention: partial(_seen, _terms)})


@contextmanager
def _recording(
    model: nn.Module, looks: Mapping[type[nn.Module], Callable[..., Kind]]
) -> Iterator[dict[str, Kind]]:
    """Record every call of these kinds of modules by a function of the module, its inputs and its output."""
    recorded: dict[str, Kind] = {}
    here = threading.get_ident()  # other threads may read with the same model
    hooks = [
        part.register_forward_hook(partial(_record, recorded, _names(model, name), look, here))
        for name, part in model.named_modules()
        for kind, look in looks.items()
        if isinstance(part, kind)
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _names(model: nn.Module, name: str) -> Iterator[str]:
    """The names of a module's calls: all the same, or one for each step."""
    if isinstance(getattr(model, "config", None), StepsConfig):
        return (name.replace(".0.", f".{step}.") for step in count())
    return repeat(name)


@torch.no_grad()
def _record(
    recorded: dict[str, Any],
    names: Iterator[str],
    look: Callable[..., Any],
    thread: int,
    part: nn.Module,
    given: tuple[Any, ...],
    output: Tensor,
) -> None:
    if threading.get_ident() == thread:
        recorded[next(names)] = look(part, given, output)


def _one_head(_attention: SourceAttention, _given: tuple[Any, ...], weights: Tensor) -> Tensor:
    return weights.unsqueeze(1)


def _seen(look: Callable[..., Kind], attention: Attention, given: tuple[Any, ...], _gathered: Tensor) -> Kind:
    hidden, keys_values, relative, mask = given
    query = attention.query(hidden).unflatten(-1, (attention.heads, -1))
    return look(attention, query, keys_values[0], relative, mask)


def _weights(
    attention: Attention, query: Tensor, key: Tensor, relative: Relative | None, mask: AttentionMask
) -> Tensor:
    return attention_weights(query, key, relative, mask, attention.scale)


def _terms(
    attention: Attention, query: Tensor, key: Tensor, relative: Relative | None, mask: AttentionMask
) -> dict[str, Tensor]:
    def scores(asking: Tensor, kept: Relative | None) -> Tensor:
        return attention_scores(asking, key, kept, causal=mask.causal)

    terms = {"content": scores(query, None)}
    if isinstance(relative, Rotation):
        terms["content and distance"] = scores(query, relative) - terms["content"]
    elif relative is not None:
        zero_query = torch.zeros_like(query)
        no_bias = torch.zeros_like(relative.content_bias)
        unbiased = replace(relative, content_bias=no_bias, position_bias=no_bias, row_bias=None)
        without_rows = replace(relative, rows=torch.zeros_like(relative.rows), row_bias=None)
        terms["content and distance"] = scores(query, unbiased) - terms["content"]
        terms["content bias"] = scores(zero_query, without_rows)
        terms["distance bias"] = scores(zero_query, replace(relative, content_bias=no_bias))
    masked = ~mask.dense(query.device)
    return {name: (term * attention.scale).masked_fill(masked, float("-inf")) for name, term in terms.items()}
