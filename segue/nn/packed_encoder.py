"""The engine of an encoder: texts of any lengths one behind the other, without padding, for reading alone.

Every layer but attention treats each token by itself, so all tokens of a batch are the rows of one matrix. Attention
takes the texts of one length together. Nothing is masked, because nothing is padded.

Letters: N tokens of all texts, G texts of one length, S tokens of a text, H heads, D head width, C width.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.errors import InputError
from segue.nn.block import Block
from segue.nn.changes import Watch
from segue.nn.encoder import Encoder
from segue.nn.scratch import scratch

Linear = tuple[Tensor, Tensor]
"""A weight and a bias."""


class PackedTexts(NamedTuple):
    """Texts one behind the other, sorted by length."""

    ids: Tensor  # (N,)
    types: Tensor  # (N,)
    lengths: Sequence[int]

    @property
    def places(self) -> Tensor:
        """(N,) The position of each token in its text."""
        return torch.cat([torch.arange(length) for length in self.lengths]).to(
            self.ids.device, non_blocking=True
        )


class PackedEncoder:
    """An encoder's weights, made ready to read with."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._watch = Watch(encoder.parameters())
        self._layers = {block: _PackedLayer(block, encoder) for block in encoder.layers()}

    @property
    def outdated(self) -> bool:
        """Whether the weights have changed since: then build a new one."""
        return self._watch.changed

    @torch.no_grad()
    def __call__(self, texts: PackedTexts) -> Iterator[Tensor]:
        """(N, C) The states of the embedding, then of every layer. Earlier ones stay as they are."""
        if max(texts.lengths) > self.encoder.config.max_positions:
            raise InputError(
                f"{max(texts.lengths)} tokens are more than the {self.encoder.config.max_positions} positions that the "
                "encoder knows; truncate the texts"
            )
        encoder = self.encoder
        embedded = encoder.words(texts.ids) + encoder.places(texts.places) + encoder.types(texts.types)
        hidden: Tensor = encoder.norm(embedded)
        if encoder.widened is not None:
            hidden = encoder.widened(hidden)
        yield hidden
        for block in encoder.layers():
            hidden = self._layers[block].read(hidden, texts.lengths)
            yield hidden


class _PackedLayer:
    """One block's weights; those of queries, keys and values are one matrix, the queries' scaled.

    What a layer needs on its way is written to scratch tensors: on a CPU, fresh memory costs a tenth of the time.
    """

    def __init__(self, block: Block, encoder: Encoder) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        query, key_value = attention.query, attention.key_value
        self.heads = attention.heads
        self.approximate = "tanh" if encoder.config.activation == "gelu-tanh" else "none"
        self.projection: Linear = (
            torch.cat([query.weight * attention.scale, key_value.weight]).detach(),
            torch.cat([query.bias * attention.scale, key_value.bias]).detach(),
        )
        self.out, self.inner, self.outer = (
            (layer.weight, layer.bias) for layer in (attention.out, feed_forward.inner, feed_forward.outer)
        )
        self.block = block

    def read(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """(N, C) The layer's output."""
        gathered = self._attended(_linear("projected", hidden, self.projection), lengths)
        hidden = self.block.attention_norm(_linear("added", gathered, self.out).add_(hidden))
        fed = torch.ops.aten.gelu_(_linear("inner", hidden, self.inner), approximate=self.approximate)
        out: Tensor = self.block.feed_forward_norm(_linear("added", fed, self.outer).add_(hidden))
        return out

    def _attended(self, projected: Tensor, lengths: Sequence[int]) -> Tensor:
        """(N, H D) What each text gathers from itself, of queries, keys and values (N, 3 H D)."""
        gathered = scratch("gathered", len(projected), projected.size(1) // 3, like=projected)
        begin = 0
        for size, same in groupby(lengths):
            count = sum(1 for _ in same)
            rows = slice(begin, begin + count * size)
            query, key, value = (
                projected[rows].view(count, size, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            )  # (G, H, S, D)
            here = F.scaled_dot_product_attention(query, key, value, scale=1.0)
            gathered[rows].view(count, size, self.heads, -1).copy_(here.transpose(1, 2))
            begin = rows.stop
        return gathered


def _linear(use: str, rows: Tensor, layer: Linear) -> Tensor:
    """(N, …) A linear layer of the rows, in a scratch tensor."""
    weight, bias = layer
    return torch.addmm(bias, rows, weight.T, out=scratch(use, len(rows), len(bias), like=rows))
