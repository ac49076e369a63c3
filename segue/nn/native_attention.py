"""Attention by native code: the numbers and gradients of `blockwise.py` from one call each, and dropout of weights.

- The backward pass keeps the inputs, the result and the log of each row's sum; it computes scores again.
- Every number is one chain of multiply-adds in a fixed order. So a row's result is the same to the last bit whatever
  the number of threads, the lanes beside it, or where a segment was cut, as long as it sees the same keys. Very short
  segments are the exception, which torch reads faster; `invariant` asks for the same bits there too.
- Dropout draws come from a counter-based generator; its seed is a draw from torch's.

Letters: B lanes, T queries, S keys, H heads, D head width, R rows of relative keys.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segue import native
from segue.nn.dropout import GRAINS
from segue.nn.mask import AttentionMask
from segue.nn.positions import RelativeKeys

FAR = 2**40
"""Farther than any key."""

FEWEST_QUERIES = 8
"""Without gradients, fewer queries than these are faster by torch, which reads the keys where they lie."""

CALLS = {torch.float32: "segue_attention_float", torch.float64: "segue_attention_double"}

COUNTS = ("lanes", "heads", "width", "queries", "keys", "rows", "row_width")
STRIDES = ("query_strides", "key_strides", "value_strides", "row_strides", "padding_strides")
INPUTS = ("query", "key", "value", "row", "content_bias", "position_bias", "row_bias", "documents", "padding")
OUTPUTS = ("gathered", "logs", "gradient", "to_logs", "to_query", "to_key", "to_value", "to_row")
BIASES = ("to_content_bias", "to_position_bias", "to_row_bias")


class _Problem(ctypes.Structure):
    """`Problem` of native/attention.hpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in (*COUNTS, "first", "last", "offset", "sees_itself", "grains")),
        ("seed", ctypes.c_uint64),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_int64 * (2 if name == "row_strides" else 3)) for name in STRIDES),
        *((name, ctypes.c_void_p) for name in (*INPUTS, *OUTPUTS, *BIASES)),
    )


_INVARIANT = ContextVar("invariant", default=False)


@contextmanager
def invariant() -> Iterator[None]:
    """Compute all attention here, of few queries too: then its bits do not depend on threads, lanes or cuts."""
    token = _INVARIANT.set(True)
    try:
        yield
    finally:
        _INVARIANT.reset(token)


def asked_invariant() -> bool:
    """Whether `invariant` is asked for here."""
    return _INVARIANT.get()


class Dropped(NamedTuple):
    """Dropout of attention weights: the probability in 1 / GRAINS, and the seed of the draws."""

    grains: int
    seed: int


NOTHING_DROPPED = Dropped(0, 0)


def drawn(probability: float) -> Dropped:
    """Dropout with a seed from torch's generator. A probability below half a grain drops nothing."""
    return Dropped(round(probability * GRAINS), int(torch.empty((), dtype=torch.int64).random_()))


def runs(query: Tensor, keys_values: Tensor, relative: RelativeKeys | None, mask: AttentionMask) -> bool:
    """Whether native code can compute this: on a CPU, in float32 or float64, without a pattern of sparse attention."""
    given = (query, keys_values) if relative is None else (query, keys_values, relative.rows)
    if query.device.type != "cpu" or mask.pattern is not None or mask.global_tokens or not mask.size:
        return False
    if query.dtype not in CALLS or any(type(one) is not Tensor or one.dtype != query.dtype for one in given):
        return False
    if mask.size < FEWEST_QUERIES and not (torch.is_grad_enabled() or _INVARIANT.get()):
        return False
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return False
    return native.library() is not None


def attend(
    query: Tensor,
    keys_values: Tensor,
    relative: RelativeKeys | None,
    mask: AttentionMask,
    scale: float,
    dropped: Dropped = NOTHING_DROPPED,
) -> tuple[Tensor, Tensor]:
    """(T, B, H, D) What queries gather from keys and values (2, S, B, H, D), and the logs of their sums (T, B, H).

    A query that sees no key gathers zeros, with the lowest number there is as its log.
    """
    tensors: tuple[Tensor | None, ...] = (query, keys_values, None, None, None, None)
    if relative is not None:
        u, v = relative.content_bias, relative.position_bias
        tensors = (query, keys_values, relative.rows, u, v, relative.row_bias)
    gathered, logs = _Attend.apply(mask, scale, dropped, *tensors)
    return gathered, logs


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mask: AttentionMask, scale: float, dropped: Dropped, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        given = [None if one is None else _dense(one) for one in tensors]
        query = given[0]
        assert query is not None
        gathered, logs = torch.empty(query.shape, dtype=query.dtype), query.new_empty(query.shape[:3])
        _call(_problem(given, mask, scale, dropped), query.dtype, {"gathered": gathered, "logs": logs})
        ctx.save_for_backward(*given, gathered, logs)
        ctx.settings = mask, scale, dropped
        ctx.set_materialize_grads(False)
        return gathered, logs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, to_logs: Tensor | None) -> Any:
        *given, gathered, logs = ctx.saved_tensors
        query, keys_values, rows, u, v, row_bias = given
        gradient = torch.zeros_like(gathered) if gradient is None else gradient.contiguous()
        to_query, to_keys_values = torch.empty_like(gathered), query.new_empty(keys_values.shape)
        to_rows, to_u, to_v, to_bias = (
            None if one is None else query.new_empty(one.shape) for one in (rows, u, v, row_bias)
        )
        outputs = {
            "gathered": gathered,
            "logs": logs,
            "gradient": gradient,
            "to_logs": None if to_logs is None else to_logs.contiguous(),
            "to_query": to_query,
            "to_key": to_keys_values[0],
            "to_value": to_keys_values[1],
            "to_row": to_rows,
            "to_content_bias": to_u,
            "to_position_bias": to_v,
            "to_row_bias": to_bias,
        }
        _call(_problem(given, *ctx.settings), query.dtype, outputs)
        return None, None, None, to_query, to_keys_values, to_rows, to_u, to_v, to_bias


def _dense(tensor: Tensor) -> Tensor:
    """The tensor, copied if its last dimension is not contiguous."""
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) <= 1 else tensor.contiguous()


def _problem(given: list[Tensor | None], mask: AttentionMask, scale: float, dropped: Dropped) -> "_Prepared":
    """The problem without its outputs; and the tensors that it points to, which must outlive the call."""
    query, keys_values, rows, u, v, row_bias = given
    assert query is not None
    assert keys_values is not None
    (queries, lanes, heads, width), (key, value) = query.shape, keys_values
    # Native code believes what it is told: a wrong shape would read beyond the tensors.
    assert queries == mask.size
    assert keys_values.shape == (2, mask.keys, lanes, heads, width)
    assert mask.documents is None or (mask.causal and mask.documents.shape == (lanes, mask.keys))
    assert mask.padding is None or mask.padding.shape == (lanes, 1, queries, mask.keys)
    assert rows is None or (rows.size(1) == heads and rows.size(2) in (0, width))
    assert row_bias is None or rows is None or row_bias.shape == rows.shape[:2]
    assert all(one is None or one.shape == (heads, width) for one in (u, v))
    inputs = {"query": query, "key": key, "value": value, "row": rows}
    inputs |= {"content_bias": None if u is None else u.contiguous()}
    inputs |= {"position_bias": None if v is None else v.contiguous()}
    inputs |= {"row_bias": None if row_bias is None else row_bias.T.contiguous()}
    inputs |= {
        "documents": None if mask.documents is None else mask.documents.contiguous(),
        "padding": mask.padding,
    }
    problem = _Problem(lanes=lanes, heads=heads, width=width, queries=queries, keys=mask.keys, scale=scale)
    problem.first, problem.last = _band(mask)
    if rows is not None:
        problem.rows, problem.row_width = len(rows), rows.size(-1)
        problem.offset = len(rows) - 1 - mask.held if mask.causal else len(rows) // 2
        problem.row_strides[:] = rows.stride()[:2]
    problem.sees_itself = mask.window is not None
    problem.grains, problem.seed = dropped
    problem.query_strides[:], problem.key_strides[:] = query.stride()[:3], key.stride()[:3]
    problem.value_strides[:] = value.stride()[:3]
    if mask.padding is not None:
        lane, _, *others = mask.padding.stride()
        problem.padding_strides[:] = lane, *others
    return _Prepared(problem, inputs)


class _Prepared(NamedTuple):
    problem: _Problem
    inputs: dict[str, Tensor | None]


def _band(mask: AttentionMask) -> tuple[int, int]:
    """Query i sees keys from i + the first up to before i + the second."""
    if mask.causal:
        first = -FAR if mask.span is None else mask.held + 1 - mask.span
        return first, mask.held + 1 - mask.nearest
    if mask.window is not None:
        return -(mask.window // 2), mask.window // 2 + 1
    return -FAR, FAR


def _call(prepared: _Prepared, dtype: torch.dtype, outputs: dict[str, Tensor | None]) -> None:
    library = native.library()
    assert library is not None
    problem = prepared.problem
    for name, tensor in (prepared.inputs | outputs).items():
        setattr(problem, name, None if tensor is None or not tensor.numel() else tensor.data_ptr())
    backward = "gradient" in outputs
    getattr(library, CALLS[dtype])(ctypes.byref(problem), ctypes.c_int32(backward), torch.get_num_threads())
