"""Pinned rows: the first g rows of a document, which all its later tokens see however far away they are.

In a causal model they are what global tokens are in an encoder: a global token sees its own past alone. What the mask
of memory and segment hides of them, because it is out of the span or a gap lies between, is attended to here.

Letters: B lanes, T queries, S keys, H heads, D head width, K pinned keys: g of each document in the segment.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.nn.layout import HOST
from segue.nn.positions import RelativeKeys
from segue.nn.taken import Taken


@dataclass(frozen=True, eq=False)
class PinnedKeys:
    """Where pinned keys are found, and which queries see them here and not among the other keys."""

    rows: Tensor  # (K, B) their rows, -1 where there is none
    slots: Tensor  # (S, B) the opposite direction, -1 for rows that are not pinned
    distances: Tensor  # (B, T, K) from each query
    visible: Tensor  # (B, T, K)
    apart: bool  # a gap lies between some of them and the other keys

    def dense(self) -> Tensor:
        """(B, 1, T, S) The pinned keys that are visible here, among all keys."""
        keys = len(self.slots)
        places = torch.where(self.rows < 0, keys, self.rows).T[:, None].expand_as(self.visible)
        seen = self.visible.new_zeros(*self.visible.shape[:2], keys + 1)
        return seen.scatter_(2, places, self.visible)[:, None, :, :keys]


def pinned_keys(
    places: Tensor,
    documents: Tensor,
    apart: Tensor,
    count: int,
    held: int,
    span: int | None,
    device: torch.device,
) -> PinnedKeys | None:
    """The pinned keys of memory and segment; None if every query sees its own among the other keys.

    Of all keys (B, S), `places` are those in their documents, `documents` are -1 for rows that are not the lane's own,
    and `apart` are before a gap. The last of them, from `held` on, are the queries'.
    """
    lanes, keys = places.shape
    pinned = (documents >= 0) & (places < count)
    if not bool(pinned.any()):
        return None
    count = int(places[pinned].max()) + 1  # a wish for more rows than were read costs nothing
    total = (int(documents.max()) + 1) * count
    slots = torch.where(pinned, documents * count + places, total)
    rows = torch.full((lanes, total + 1), -1, device=HOST)
    rows = rows.scatter_(1, slots, torch.arange(keys, device=HOST).expand(lanes, -1))[:, :total]
    found = rows.clamp(min=0)
    of_key = documents.gather(1, found), places.gather(1, found), apart.gather(1, found)
    same = documents[:, held:, None] == of_key[0][:, None]
    distances = places[:, held:, None] - of_key[1][:, None]
    hidden = of_key[2][:, None].expand_as(same)
    if span is not None:
        hidden = hidden | (distances >= span)
    visible = same & (rows >= 0)[:, None] & (distances >= 0) & hidden
    if not bool(visible.any()):
        return None
    slots = slots.masked_fill(~pinned, -1)
    return PinnedKeys(
        rows.T.to(device, non_blocking=True),
        slots.T.to(device, non_blocking=True),
        distances.to(device, non_blocking=True),
        visible.to(device, non_blocking=True),
        bool(apart.any()),
    )


def attend_pinned(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, pinned: PinnedKeys, scale: float
) -> tuple[Tensor, Tensor]:
    """(T, B, H, D) What queries (T, B, H, D) gather from pinned keys, and the logs of their sums (T, B, H)."""
    lanes = torch.arange(query.size(1), device=query.device)[None]
    there, back = (pinned.rows, lanes), (pinned.slots, lanes)
    key, value = (Taken.apply(rows, there, back) for rows in keys_values)
    content = query if relative is None else query + relative.content_bias
    scores = torch.einsum("tbhd,kbhd->bhtk", content, key)
    if relative is not None:
        scores = scores + _positions(query, relative, pinned.distances)
    lowest = torch.finfo(scores.dtype).min
    scores = (scores * scale).masked_fill(~pinned.visible[:, None], lowest)
    logs = scores.logsumexp(dim=-1)
    gathered = torch.einsum("bhtk,kbhd->tbhd", scores.softmax(dim=-1), value)
    return gathered, logs.permute(2, 0, 1)


def _positions(query: Tensor, relative: RelativeKeys, distances: Tensor) -> Tensor:
    """(B, H, T, K) The position terms (b) and (d) of given distances (B, T, K); those beyond the rows score zero."""
    known, heads, width = relative.rows.shape
    row = (known - distances).clamp(min=0)  # row 0 is zero, and stands for all that are farther
    row = row.clamp(max=known)  # of keys ahead, which are masked
    table = F.pad(relative.rows.flatten(1), (0, 0, 1, 0))
    rows = F.embedding(row, table).unflatten(-1, (heads, width))
    asking = (query + relative.position_bias)[..., :width]
    scores = torch.einsum("tbhd,btkhd->bhtk", asking, rows)
    if relative.row_bias is not None:
        scores = scores + F.embedding(row, F.pad(relative.row_bias, (0, 0, 1, 0))).permute(0, 3, 1, 2)
    return scores
