"""Sources of a translator without padding: tokens of all sentences one behind the other, for reading alone.

Every layer but attention treats each token by itself, so padding costs nothing there. An empty sentence has one row,
which is zero behind the encoder: the model's own attends to its padding, which is zero too.

Letters: N tokens of all sentences, B sentences, S tokens of the longest, H heads, D head width, C width.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from segue.nn.attention import gather
from segue.nn.block import Block, Source
from segue.nn.layout import HOST, SegmentLayout
from segue.nn.low_rank import LowRank
from segue.nn.mask import AttentionMask, whole_mask
from segue.nn.positions import RelativeKeys

if TYPE_CHECKING:
    from segue.nn.seq2seq import Seq2Seq


class PackedSource(NamedTuple):
    """Keys and values of all sentences for each layer of the decoder, and which are each sentence's."""

    keys_values: list[Tensor]  # for each layer (N, 2, H, D)
    firsts: Tensor  # (B,) the first row of each sentence
    counts: Tensor  # (B,) its rows
    layout: SegmentLayout

    def padded(self) -> tuple[Source, ...]:
        """For each layer what the model itself attends to: keys and values (2, S, B, H, D), and their mask."""
        places, mask = _places(self.layout), whole_mask(replace(self.layout, lengths=self.counts), HOST)
        return tuple(
            Source(_spread(rows, places, self.layout).movedim(2, 0), mask) for rows in self.keys_values
        )


def packed_source(model: "Seq2Seq", source: Tensor, layout: SegmentLayout) -> PackedSource:
    """Encode sources (B, S), and make the decoder's keys and values of them."""
    model.check_source(layout.size)
    counts, places = layout.counts.clamp(min=1), _places(layout)
    hidden = _encoded(model, source, layout, places)
    blocks = (block for block in model.decoder if isinstance(block, Block))
    keys_values = [
        block.cross.key_value(hidden).unflatten(-1, (2, block.cross.heads, -1)) for block in blocks
    ]
    return PackedSource(keys_values, counts.cumsum(0) - counts, counts, layout)


def _places(layout: SegmentLayout) -> Tensor:
    """(N,) Where the tokens of each sentence stand in padded sources, time first: S B."""
    real = torch.arange(layout.size, device=HOST) < layout.counts.clamp(min=1)[:, None]
    sentence, place = real.nonzero(as_tuple=True)
    return place * layout.lanes + sentence


def _encoded(model: "Seq2Seq", source: Tensor, layout: SegmentLayout, places: Tensor) -> Tensor:
    """(N, C) The encoder's output."""
    if model.config.attention != "full" or model.config.window:
        hidden: Tensor = model.encode(source, layout.lengths)[0]
        return hidden.flatten(0, 1)[places]
    hidden, mask = model.source_embedding.embed(source.T.flatten()[places]), whole_mask(layout, HOST)
    if model.config.encoding != "xl":
        hidden = model.placed(hidden, places // layout.lanes)
    for block, relative in zip(model.encoder, model.relations(layout.size), strict=True):
        assert isinstance(block, Block)
        assert not isinstance(relative, LowRank)
        hidden = _read(block, hidden, relative, mask, layout, places)
    if model.ends_in_norm:
        hidden = model.encoder_norm(hidden)
    empty = (layout.counts == 0)[places % layout.lanes]
    return hidden.masked_fill(empty[:, None], 0) if empty.any() else hidden


def _read(
    block: Block,
    hidden: Tensor,
    relative: RelativeKeys | None,
    mask: AttentionMask,
    layout: SegmentLayout,
    places: Tensor,
) -> Tensor:
    """(N, C) A layer's output. Attention alone sees the sentences side by side."""
    attention, normed = block.attention, block.normed_input(hidden)
    query = attention.query(normed).unflatten(-1, (attention.heads, -1))
    keys_values = attention.key_value(normed).unflatten(-1, (2, attention.heads, -1))
    asked = _spread(keys_values, places, layout).movedim(2, 0)
    gathered = gather(_spread(query, places, layout), asked, relative, mask, attention.scale)
    rows: Tensor = attention.out(gathered.flatten(2).flatten(0, 1)[places])
    return block.behind_attention(hidden, rows)


def _spread(rows: Tensor, places: Tensor, layout: SegmentLayout) -> Tensor:
    """(S, B, …) Rows (N, …) at their places, zero elsewhere."""
    spread = rows.new_zeros(layout.size * layout.lanes, *rows.shape[1:])
    return spread.index_copy_(0, places, rows).view(layout.size, layout.lanes, *rows.shape[1:])
