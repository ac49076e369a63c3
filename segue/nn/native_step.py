"""One token of each lane through all layers in one call of native code: `segue/native/step.cpp`.

The structures here are those of the C++ source, field by field. They hold addresses; whoever makes them keeps the
tensors alive.

Letters: N layers, B lanes, H heads, D head width, C width, R rows of relative keys.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from segue import native
from segue.nn.frozen_layer import FloatLinear, FrozenLayer, Linear
from segue.nn.int8 import Int8Linear, PlainInt8
from segue.nn.kv_memory import KVMemory
from segue.nn.native_structures import (
    ADDRESS,
    SIZE,
    WORK_OF_A_THREAD,
    Norm,
    Weights,
    address,
    matrix,
    norm,
    structure,
)
from segue.nn.positions import Relative as AnyRelative
from segue.nn.positions import RelativeKeys, Rotation

CALLS = {torch.float32: "segue_step_float", torch.float64: "segue_step_double"}
STORED = {torch.float16: 1, torch.int8: 2}
"""Precisions of keys and values besides the model's own, as `Stored` of native/rows.hpp counts them."""

MOST_TABLES = 32
"""Tables of relative keys whose addresses are kept."""

_Relative = structure(
    "Relative",
    **dict.fromkeys(("rows", "farthest", "bias", "content_bias", "position_bias"), ADDRESS),
    known=SIZE,
)
_Layer = structure(
    "Layer",
    **dict.fromkeys(("query", "key_value", "out", "inner", "outer"), Weights),
    **dict.fromkeys(("attention_norm", "feed_forward_norm"), Norm),
    relative=_Relative,
)
_Stack = structure(
    "Stack",
    layers=ADDRESS,
    **dict.fromkeys(("count", "width", "heads", "head_width", "feedforward", "pre"), SIZE),
    scale=ctypes.c_double,
)
_Lane = structure(
    "Lane",
    rows=ADDRESS,
    **dict.fromkeys(("layer_stride", "half_stride", "head_stride", "slot", "count"), SIZE),  # in bytes
)
_Tokens = structure(
    "Tokens",
    **dict.fromkeys(("hidden", "added", "cosines", "sines", "lanes"), ADDRESS),
    **dict.fromkeys(("count", "stored"), SIZE),
)


class NativeSteps:
    """The layers of an engine as native code sees them. Many threads may call it."""

    def __init__(self, layers: Sequence[FrozenLayer]) -> None:
        self._layers = layers
        self._linears = [[_plain(linear) for linear in _linears(layer)] for layer in layers]
        self._stacks: dict[int, tuple[Any, ...]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stacks": {}}  # copies have other addresses

    def __call__(
        self, hidden: Tensor, relative: Sequence[AnyRelative | None], memory: KVMemory, added: Tensor | None
    ) -> Tensor:
        """The stack's output (B, C) for one token of each lane; its keys and values are written to the memory's slots.

        `added` (N, B, C) is what positions add to each layer's inputs.
        """
        library, hidden = native.library(), hidden.clone(memory_format=torch.contiguous_format)
        assert library is not None
        stored = 0 if memory.dtype == hidden.dtype else STORED[memory.dtype]
        turning = relative[0] if isinstance(relative[0], Rotation) else None
        cosines, sines = (
            (None, None) if turning is None else (turning.cosines.contiguous(), turning.sines.contiguous())
        )
        lanes = _lanes(memory)
        tokens = _Tokens(
            *(address(tensor) for tensor in (hidden, added, cosines, sines)),
            ctypes.addressof(lanes),
            len(lanes),
            stored,
        )
        stack, *_ = self._stack(relative if turning is None else [None] * len(self._layers))
        call = getattr(library, CALLS[hidden.dtype])
        if call(ctypes.byref(stack), ctypes.byref(tokens), self._threads(stack, lanes)):
            raise MemoryError("not enough memory to read a token")
        return hidden

    def _threads(self, stack: Any, lanes: Any) -> int:
        """As many as torch uses, or fewer where a thread would wait for the others longer than it works."""
        keys = sum(lane.count for lane in lanes)
        inside = stack.heads * stack.head_width
        weights = stack.width * (4 * inside + 2 * stack.feedforward)
        work = len(lanes) * weights + 3 * keys * inside
        return max(1, min(torch.get_num_threads(), int(work) // WORK_OF_A_THREAD))

    def _stack(self, relative: Sequence[AnyRelative | None]) -> tuple[Any, ...]:
        """The layers with these relative keys, and all that must stay alive with them."""
        kept = self._stacks.get(id(relative[0]))
        if kept is not None and kept[1] is relative[0]:
            return kept
        prepared = [_relative(one) for one in relative]
        of_layers = zip(self._layers, self._linears, prepared, strict=True)
        layers: Any = (_Layer * len(prepared))(
            *(
                _Layer(
                    *map(matrix, linears), norm(layer.attention_norm), norm(layer.feed_forward_norm), table
                )
                for layer, linears, (table, _) in of_layers
            )
        )
        first, out, inner = self._layers[0], layers[0].out, layers[0].inner
        head_width = out.inputs // first.heads
        shape = (len(layers), out.outputs, first.heads, head_width, inner.outputs)
        stack = _Stack(ctypes.addressof(layers), *shape, first.pre, first.scale)
        kept = (stack, relative[0], layers, relative, prepared)
        if len(self._stacks) >= MOST_TABLES:
            self._stacks = {}  # replaced, not emptied: another thread may be reading it
        self._stacks[id(relative[0])] = kept
        return kept


def native_steps(layers: Sequence[FrozenLayer]) -> NativeSteps | None:
    """The layers for native code; None if it cannot run them."""
    weights = [tensor for layer in layers for tensor in _tensors(layer)]
    kinds = {type(linear) for layer in layers for linear in _linears(layer)}
    fits = kinds in ({FloatLinear}, {Int8Linear}) and all(
        tensor.device.type == "cpu" and tensor.dtype == weights[0].dtype and tensor.is_contiguous()
        for tensor in weights
    )
    known = fits and weights[0].dtype in CALLS and native.library() is not None
    return NativeSteps(layers) if known else None


def _linears(layer: FrozenLayer) -> list[Linear]:
    return [layer.query, layer.key_value, layer.out, layer.inner, layer.outer]


def _plain(linear: Linear) -> FloatLinear | PlainInt8:
    assert isinstance(linear, FloatLinear | Int8Linear)
    return linear.plain() if isinstance(linear, Int8Linear) else linear


def _tensors(layer: FrozenLayer) -> list[Tensor]:
    """What must be of one precision."""
    norms = [part for one in (layer.attention_norm, layer.feed_forward_norm) for part in one[:2]]
    floats = [linear for linear in _linears(layer) if isinstance(linear, FloatLinear)]
    return [*norms, *(part for linear in floats for part in linear if part is not None)]


def _relative(relative: AnyRelative | None) -> tuple[ctypes.Structure, list[Tensor | None]]:
    """A layer's relative keys, and the tensors that its addresses belong to."""
    if relative is None:
        return _Relative(), []
    assert isinstance(relative, RelativeKeys)
    kept = relative.stored
    rows = relative.rows.transpose(0, 1).contiguous() if kept is None else kept.rows  # (H, R, D)
    farthest = None if kept is None else kept.farthest
    bias = None if relative.row_bias is None else relative.row_bias.T.contiguous()
    tensors = [rows, farthest, bias, relative.content_bias.contiguous(), relative.position_bias.contiguous()]
    return _Relative(*(address(tensor) for tensor in tensors), len(relative.rows)), tensors


def _lanes(memory: KVMemory) -> Any:
    """Where each lane's rows lie, and how many keys it sees, the new one among them."""
    lanes: Any = (_Lane * memory.lanes)()
    most, number, held = memory.reach.span or memory.size + 1, 0, memory.lengths.tolist()
    for part in memory.parts:
        storage = part.buffer.storage
        assert storage.dtype == memory.dtype
        assert storage.is_contiguous()
        layer, half, lane, head, _, _ = (stride * storage.element_size() for stride in storage.stride())
        first = storage.data_ptr()
        for place in range(part.lanes.start, part.lanes.stop):
            lanes[number] = (first + place * lane, layer, half, head, part.end, min(held[number] + 1, most))
            number += 1
    return lanes
