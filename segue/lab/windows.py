"""The vanilla way to predict one token: a whole window read anew, as in the textbook or as fast as torch can.

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
"""What queries (t, B, C), the last of those there are, gather from states (T, B, C): (t, B, H D)."""


def textbook_window(model: TransformerXL, tokens: Tensor) -> Tensor:
    """(B, 1, C) The last hidden state after a window (B, T), every score computed: what was published."""
    return _last(model, tokens, _textbook, only_last=False)


def fast_window(model: TransformerXL, tokens: Tensor) -> Tensor:
    """The same by fused attention; in the last layer only the last row goes on."""
    return _last(model, tokens, _fused, only_last=True)


def _last(model: TransformerXL, tokens: Tensor, attend: Attend, *, only_last: bool) -> Tensor:
    assert model.config.encoding == "sinusoidal", "vanilla: relations are not looked at"
    places = torch.arange(tokens.size(1))[:, None]
    hidden = model.positions.embedded(model.vocabulary.embed(tokens.T), places)
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        asking = hidden[-1:] if only_last and number == len(model.blocks) - 1 else hidden
        gathered = block.attention.out(attend(block.attention, asking, hidden))
        mixed = block.attention_norm(asking + gathered)
        hidden = block.feed_forward_norm(mixed + block.feed_forward(mixed))
    return hidden[-1:].transpose(0, 1)


def _textbook(attention: Attention, asking: Tensor, hidden: Tensor) -> Tensor:
    query = attention.query(asking).unflatten(-1, (attention.heads, -1))
    gathered = textbook(
        query, attention.project(hidden), None, AttentionMask(0, len(asking)), attention.scale
    )
    return gathered.flatten(2)


def _fused(attention: Attention, asking: Tensor, hidden: Tensor) -> Tensor:
    query = attention.query(asking).unflatten(-1, (attention.heads, -1)).permute(1, 2, 0, 3)
    key, value = attention.project(hidden).permute(0, 2, 3, 1, 4)
    gathered = F.scaled_dot_product_attention(query, key, value, is_causal=len(asking) > 1)
    return gathered.permute(2, 0, 1, 3).flatten(2)
