"""Attention over memory and segment: a query scores a key by what it holds and by how far back it lies.

Here it stands as in the papers; `blockwise.py` computes the same, fast, and is what runs where it can.

Letters: B lanes, T queries, S keys, H heads, D head width, C width, R rows of a relation. Time comes first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import LayersConfig
from segue.errors import InputError
from segue.nn import native_attention
from segue.nn.blockwise import attend, attend_part, merged, query_blocks
from segue.nn.dropout import GRAINS, Dropout
from segue.nn.kv_memory import KVSlots
from segue.nn.mask import AttentionMask
from segue.nn.pinned import attend_pinned
from segue.nn.positions import Relative, RelativeKeys, Rotation
from segue.nn.sparse import attend_sparse
from segue.nn.tracing import tracing
from segue.nn.window import Pieces, RelativePieces, window_blocks


def relative_shift(scores: Tensor) -> Tensor:
    """Re-index columns from distance to key.

    Column j of `scores` is distance S-1-j; column j of the result is key j.
    Entries for keys ahead of their query are meaningless: mask them.
    """
    *lead, queries, keys = scores.shape
    padded = F.pad(scores, (1, 0)).view(*lead, keys + 1, queries)
    return padded[..., 1:, :].reshape(*lead, queries, keys)


def attention_scores(query: Tensor, key: Tensor, relative: Relative | None, *, causal: bool = True) -> Tensor:
    """(B, H, T, S) What each query (T, B, H, D) has to do with each key (S, B, H, D), before scaling.

    With relative keys, the four terms of Transformer-XL: (a) q·k, (b) q·r, (c) u·k, (d) v·r. Without, (a) alone.
    """
    if isinstance(relative, Rotation):
        query, key = turned(query, key, relative)
        relative = None
    if relative is None:
        return torch.einsum("tbhd,sbhd->bhts", query, key)
    content = torch.einsum("tbhd,sbhd->bhts", query + relative.content_bias, key)  # (a) + (c)
    keys = key.size(0)  # (`len` would fix the size of a traced graph)
    needed = slice(max(0, relative.rows.size(0) - keys) if causal else 0, None)
    rows = relative.rows[needed]
    asking = (query + relative.position_bias)[..., : rows.size(-1)]
    position = torch.einsum("tbhd,rhd->bhtr", asking, rows)  # (b) + (d)
    if relative.row_bias is not None:
        position = position + relative.row_bias[needed].T[:, None]
    if not causal:  # rows for both sides
        return content + relative_shift(position)[..., :keys]
    farther = keys - rows.size(0)
    if farther:  # they score zero
        position = F.pad(position, (farther, 0))
    return content + relative_shift(position)


def turned(query: Tensor, key: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Queries (T, B, H, D) and keys (S, B, H, D) turned by their positions; the queries stand at the last T keys."""
    keys = key.size(0)
    return rotation.part(keys - query.size(0), keys).turned(query), rotation.part(0, keys).turned(key)


def casting(tensor: Tensor) -> bool:
    """Whether autocast is on. It knows torch's operations, and not those that are written by hand."""
    return tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)


def attention_weights(
    query: Tensor, key: Tensor, relative: Relative | None, mask: AttentionMask, scale: float
) -> Tensor:
    """(B, H, T, S) softmax(scores · scale) over the keys that the mask leaves."""
    if mask.pinned is not None and mask.pinned.apart and relative is not None:
        raise InputError("weights of pinned rows are not shown once a gap has parted them from the others")
    scores: Tensor = attention_scores(query, key, relative, causal=mask.causal) * scale
    return scores.masked_fill(~mask.dense(scores.device), float("-inf")).softmax(dim=-1)


def gather(
    query: Tensor,
    keys_values: Tensor,
    relative: Relative | None,
    mask: AttentionMask,
    scale: float,
    dropout: Dropout | None = None,
) -> Tensor:
    """(T, B, H, D) What queries (T, B, H, D) gather from keys and values (2, S, B, H, D), by the fastest way."""
    if tracing():
        return textbook(query, keys_values, relative, mask, scale)
    dropping = dropout is not None and dropout.training and dropout.p > 0
    if dropout is not None and dropping and not casting(query) and mask.pinned is None:
        asking, asked, known = without_rotation(query, keys_values, relative)
        if round(dropout.p * GRAINS) < GRAINS and native_attention.runs(asking, asked, known, mask):
            drawn = native_attention.drawn(dropout.p)
            return native_attention.attend(asking, asked, known, mask, scale, drawn)[0]
    if mask.global_tokens or (mask.window is not None and dropping):
        assert not isinstance(relative, Rotation)
        return textbook_in_windows(query, keys_values, relative, mask, scale, dropout)
    if mask.pattern is not None or mask.pinned is not None:
        if dropping:
            raise InputError(
                "attention_dropout needs all keys at once, and pinned rows are apart; use dropout"
            )
        return gather_parts(query, keys_values, relative, mask, scale)
    if not dropping:
        query, keys_values, relative = without_rotation(query, keys_values, relative)
        return (attend_cast if casting(query) else attend)(query, keys_values, relative, mask, scale)
    by_blocks = mask.span is not None and mask.causal  # so that nothing is as large as T × S
    return (textbook_by_blocks if by_blocks else textbook)(query, keys_values, relative, mask, scale, dropout)


def attend_cast(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> Tensor:
    """`attend` under autocast: in its precision, or in float32 where biases of distances are added to the scores."""
    kind = torch.get_autocast_dtype(query.device.type)
    if relative is not None:
        kind = kind if relative.row_bias is None else torch.float32
        relative = relative.to(kind)
    with torch.autocast(query.device.type, enabled=False):
        return attend(query.to(kind), keys_values.to(kind), relative, mask, scale)


def gather_parts(
    query: Tensor, keys_values: Tensor, relative: Relative | None, mask: AttentionMask, scale: float
) -> Tensor:
    """The same where the mask has a pattern or pinned keys; under autocast in float32."""
    query, keys_values, known = without_rotation(query, keys_values, relative)
    if casting(query):
        known = None if known is None else known.to(torch.float32)
        with torch.autocast(query.device.type, enabled=False):
            return _attend_parts(query.float(), keys_values.float(), known, mask, scale)
    return _attend_parts(query, keys_values, known, mask, scale)


def _attend_parts(
    query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask, scale: float
) -> Tensor:
    if mask.pinned is None:
        return attend_sparse(query, keys_values, relative, mask, scale)
    near = attend_part(query, keys_values, relative, mask, scale)
    return merged([near, attend_pinned(query, keys_values, relative, mask.pinned, scale)])


def without_rotation(
    query: Tensor, keys_values: Tensor, relative: Relative | None
) -> tuple[Tensor, Tensor, RelativeKeys | None]:
    """The same queries and keys, turned already if they have rotary positions."""
    if not isinstance(relative, Rotation):
        return query, keys_values, relative
    query, key = turned(query, keys_values[0], relative)
    return query, torch.stack([key, keys_values[1]]), None


def textbook_by_blocks(
    query: Tensor,
    keys_values: Tensor,
    relative: Relative | None,
    mask: AttentionMask,
    scale: float,
    dropout: Dropout | None = None,
) -> Tensor:
    """The same as `textbook`, a block of queries at a time, each with the keys in its span."""
    parts = []
    for block in query_blocks(mask):
        part = mask.part(slice(block.begin, block.end), slice(block.low, block.high))
        near = keys_values[:, block.low : block.high]
        parts.append(textbook(block.queries(query), near, relative, part, scale, dropout))
    return torch.cat(parts)


def textbook_in_windows(
    query: Tensor,
    keys_values: Tensor,
    relative: RelativeKeys | None,
    mask: AttentionMask,
    scale: float,
    dropout: Dropout | None = None,
) -> Tensor:
    """The same as `textbook` for windows to both sides, a block of queries at a time, with global tokens or without."""
    blocks, gathered = list(window_blocks(mask)), []
    queries = Pieces(query, [block.queries for block in blocks])
    rows = Pieces(keys_values, [run for block in blocks for run in block.runs], dim=1)
    distances = None if relative is None else RelativePieces(relative, blocks)
    for block in blocks:
        asking, scores, values = queries[block.queries], [], []
        for run in block.runs:
            key, value = rows[run]
            near = None if distances is None else distances.between(block, run)
            seen = mask.in_window(block.queries, run, query.device)
            if (masked := mask.masked(block.queries, run)) is not None:
                seen = seen & ~masked
            run_scores = attention_scores(asking, key, near, causal=False) * scale
            scores.append(run_scores.masked_fill(~seen, float("-inf")))
            values.append(value)
        weights = torch.cat(scores, dim=-1).softmax(dim=-1)
        weights = weights if dropout is None else dropout(weights)
        gathered.append(torch.einsum("bhts,sbhd->tbhd", weights, torch.cat(values)))
    return torch.cat(gathered)


def textbook(
    query: Tensor,
    keys_values: Tensor,
    relative: Relative | None,
    mask: AttentionMask,
    scale: float,
    dropout: Dropout | None = None,
) -> Tensor:
    """(T, B, H, D) The published formula as it is printed; tests hold `attend` to it."""
    weights = attention_weights(query, keys_values[0], relative, mask, scale)
    weights = weights if dropout is None else dropout(weights)
    return torch.einsum("bhts,sbhd->tbhd", weights, keys_values[1])


class Attention(nn.Module):
    """Multi-head attention: softmax(scores / sqrt(D)) v, over several heads."""

    def __init__(self, config: LayersConfig, *, bias: bool = False) -> None:
        super().__init__()
        self.heads, inner = config.heads, config.heads * config.head_width
        self.query = nn.Linear(config.width, inner, bias=bias)
        self.key_value = nn.Linear(config.width, 2 * inner, bias=bias)
        self.out = nn.Linear(inner, config.width, bias=bias)
        self.scale = config.head_width**-0.5
        self.dropout = Dropout(config.attention_dropout)

    def project(self, *states: Tensor) -> Tensor:
        """(2, S, B, H, D) Keys and values of states (…, B, C) that follow each other."""
        if casting(states[0]) or tracing():
            projected = (
                self.key_value(torch.cat(states)).unflatten(-1, (2, -1)).movedim(states[0].dim() - 1, 0)
            )
        else:
            projected = _Project.apply(self.key_value.weight, self.key_value.bias, *states)
        by_head: Tensor = projected.unflatten(-1, (self.heads, -1))
        return by_head

    def project_behind(self, slots: KVSlots, states: Tensor) -> Tensor:
        """(2, M + T, B, H, D) The keys and values in the slots; those of states (T, B, C) are written to the last T."""
        held = slots.rows.size(1) - len(states)
        fresh = self.key_value(states).unflatten(-1, (2, self.heads, -1)).movedim(2, 0)
        slots.rows[:, held:] = fresh.detach()
        return torch.cat([slots.rows[:, :held], fresh], dim=1) if torch.is_grad_enabled() else slots.rows

    def forward(
        self, hidden: Tensor, keys_values: Tensor, relative: Relative | None, mask: AttentionMask
    ) -> Tensor:
        """What the queries in `hidden` (T, B, C) gather from keys and values (2, S, B, H, D)."""
        query = self.query(hidden).unflatten(-1, (self.heads, -1))
        gathered = gather(query, keys_values, relative, mask, self.scale, self.dropout)
        out: Tensor = self.out(gathered.flatten(2))
        return out


class _Project(torch.autograd.Function):
    """Keys and values of several runs of states written side by side, each where it belongs."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, *states: Tensor) -> Tensor:
        ctx.save_for_backward(weight, *states)
        sizes = [len(run) for run in states]
        projected = weight.new_empty(2, sum(sizes), states[0].size(1), len(weight) // 2)
        for half, into in zip(weight.chunk(2), projected, strict=True):
            for run, place in zip(states, into.split(sizes), strict=True):
                torch.mm(run.flatten(0, 1), half.T, out=place.flatten(0, 1))
        return projected if bias is None else projected.add_(bias.view(2, 1, 1, -1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        weight, *states = ctx.saved_tensors
        to_weight = torch.empty_like(weight)
        runs = gradient.split([len(run) for run in states], dim=1)
        to_states: list[Tensor | None] = []
        for run, arriving, wanted in zip(states, runs, ctx.needs_input_grad[2:], strict=True):
            key, value = arriving.flatten(1, 2)
            for to_half, rows in zip(to_weight.chunk(2), (key, value), strict=True):
                to_half.addmm_(rows.T, run.flatten(0, 1), beta=1 if to_states else 0)
            to_run = torch.addmm(key @ weight.chunk(2)[0], value, weight.chunk(2)[1]) if wanted else None
            to_states.append(None if to_run is None else to_run.view_as(run))
        to_bias = gradient.sum(dim=(1, 2)).flatten() if ctx.needs_input_grad[1] else None
        return to_weight, to_bias, *to_states
