"""Sliding-window prediction, as vanilla Transformers do it: the whole window is read again for every token.

Letters: B lanes, T tokens in the window, H heads, D head width, C width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.nn.attention import Attention, textbook
from segue.nn.block import Block
from segue.nn.mask import AttentionMask
from segue.nn.xl import TransformerXL

Attend = Callable[[Attention, Tensor, Tensor], Tensor]
"""Attention of the last t positions (t, B, C) over all states (T, B, C): (t, B, H D)."""


def textbook_window(model: TransformerXL, tokens: Tensor) -> Tensor:
    """(B, 1, C) The last hidden state of a window (B, T), with every score computed: the published method."""
    return _last_state(model, tokens, _textbook, only_last=False)


def fast_window(model: TransformerXL, tokens: Tensor) -> Tensor:
    """The same with fused attention, and with the last query alone in the last layer."""
    return _last_state(model, tokens, _fused, only_last=True)


def _last_state(model: TransformerXL, tokens: Tensor, attend: Attend, *, only_last: bool) -> Tensor:
    assert model.config.encoding == "sinusoidal", "vanilla: there are no relative positions here"
    assert not model.config.layer_embeddings, "the layers' own embeddings are not added here"
    assert model.ngrams is None, "nor are those of n-grams"
    places = torch.arange(tokens.size(1))[:, None]
    hidden = model.positions.embedded(model.vocabulary.embed(tokens.T), places)
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        last = hidden[-1:] if only_last and number == len(model.blocks) - 1 else hidden
        attended = block.attention.out(attend(block.attention, last, hidden))
        mixed = block.attention_norm(last + attended)
        hidden = block.feed_forward_norm(mixed + block.feed_forward(mixed))
    return hidden[-1:].transpose(0, 1)


def _textbook(attention: Attention, last: Tensor, hidden: Tensor) -> Tensor:
    query = attention.query(last).unflatten(-1, (attention.heads, -1))
    attended = textbook(query, attention.project(hidden), None, AttentionMask(0, len(last)), attention.scale)
    return attended.flatten(2)


def _fused(attention: Attention, last: Tensor, hidden: Tensor) -> Tensor:
    query = attention.query(last).unflatten(-1, (attention.heads, -1)).permute(1, 2, 0, 3)
    key, value = attention.project(hidden).permute(0, 2, 3, 1, 4)
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=len(last) > 1)
    return attended.permute(2, 0, 1, 3).flatten(2)
