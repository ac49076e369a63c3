"""Keys and values in fewer bits than the model's own: float16, or int8 with a scale for each row of each head.

A row of int8 is D steps between -127 and 127, and behind them the four bytes of their scale, a float32: so it travels,
is copied and saved like any other row. Native code reads the same rows (`native/rows.hpp`). Letters: D head width.
"""

import torch
from torch import Tensor

from segue.config import KVCache
from segue.errors import InputError

STEPS = 127
SCALE_BYTES = 4

KINDS = {"float16": torch.float16, "int8": torch.int8}


def kind_of_rows(precision: KVCache, exact: torch.dtype) -> torch.dtype:
    """The type that rows are stored in."""
    if precision not in ("exact", *KINDS):
        raise InputError(f"kv_cache should be exact, float16 or int8; found {precision!r}")
    return KINDS.get(precision, exact)


def row_width(width: int, kind: torch.dtype) -> int:
    """Numbers in a stored row of D."""
    return width + SCALE_BYTES if kind == torch.int8 else width


def packed(rows: Tensor, kind: torch.dtype) -> Tensor:
    """Rows (…, D) as they are stored. What is too large for float16 becomes its largest number."""
    if kind == torch.float16 and rows.dtype != kind:
        most = torch.finfo(kind).max
        return rows.clamp(-most, most).to(kind)
    if kind != torch.int8:
        return rows.to(kind)
    rows = rows.float()
    largest = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)  # a row of zeros stays one
    scale = torch.where(largest.isfinite(), largest / STEPS, torch.nan)  # what is no number stays none
    steps = (rows / largest * STEPS).round().nan_to_num(0).to(kind)
    scale_bytes = scale.reshape(-1).view(kind).reshape(*rows.shape[:-1], SCALE_BYTES)
    return torch.cat([steps, scale_bytes], dim=-1)


def unpacked(rows: Tensor, kind: torch.dtype) -> Tensor:
    """Stored rows as numbers of another kind, (…, D): the rows themselves if they are such already."""
    if rows.dtype != torch.int8:
        return rows.to(kind)
    steps, scale = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:]
    scale = scale.flatten().clone().view(torch.float32)  # a copy of its own is aligned
    return steps.to(kind) * scale.reshape(*steps.shape[:-1], 1).to(kind)
