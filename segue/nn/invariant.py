"""Reading whose bits are a row's own: they do not depend on threads, on other lanes, or on where segments are cut.

    with invariant():
        hidden, memory = engine(tokens, memory)

Inside, attention is native whatever the number of queries, single tokens are read as segments, and every product of a
matrix with weights is one that adds up each number by itself (`native/product.cpp`). Torch's own products choose their
order of additions by the number of rows. All else that an engine of Transformer-XL computes is done row by row anyway.
"""

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from segue import native
from segue.config import Reading, XLConfig
from segue.errors import InputError
from segue.nn import native_attention
from segue.nn.engine import Engine

CALLS = {torch.float32: "segue_product_float", torch.float64: "segue_product_double"}

SINES = {torch.ops.aten.sin.default: math.sin, torch.ops.aten.cos.default: math.cos}


@contextmanager
def invariant() -> Iterator[None]:
    """Read so that no bit of a row depends on threads, lanes or cuts. Needs native code."""
    if native.library() is None:
        raise InputError(f"results that depend on no cut need native code, and there is none: {native.why()}")
    with native_attention.invariant(), _OwnNumbers():
        yield


def check_invariant(engine: Engine[Any], reading: Reading) -> None:
    """Refuse what is not computed row by row: other models, sparse patterns, pinned rows, other devices."""
    config = engine.config
    if not isinstance(config, XLConfig) or config.pattern != "full" or reading.reach.pinned:
        raise InputError(
            "results that depend on no cut, lane or thread are for Transformer-XL with full or windowed attention, "
            "without pinned rows"
        )
    kind = engine.model.vocabulary.tables[0].dtype
    if engine.device.type != "cpu" or kind not in CALLS:
        raise InputError(
            f"results that depend on no cut, lane or thread are for float32 and float64 on a CPU; this model is {kind} "
            f"on {engine.device.type}"
        )


class _OwnNumbers(TorchDispatchMode):
    """Products of matrices by native code, and sines one by one: torch's depend on their place in a tensor."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.mm.default and _fits(*args):
            return _product(*args)
        if func is torch.ops.aten.addmm.default and not kwargs and args[0].dim() == 1 and _fits(*args):
            return _product(args[1], args[2], args[0])
        if func in SINES and args[0].is_cpu:
            return _one_by_one(SINES[func], args[0])
        return func(*args, **(kwargs or {}))


def _one_by_one(function: Callable[[float], float], angles: Tensor) -> Tensor:
    return angles.new_tensor([function(angle) for angle in angles.flatten().tolist()]).view(angles.shape)


def _fits(*tensors: Tensor) -> bool:
    kinds = {tensor.dtype for tensor in tensors}
    return len(kinds) == 1 and kinds <= set(CALLS) and all(tensor.is_cpu for tensor in tensors)


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    left, right = left.contiguous(), right.T.contiguous()
    bias = None if bias is None else bias.expand(len(right)).contiguous()
    product = left.new_empty(len(left), len(right))
    sizes = (ctypes.c_int64 * 3)(*product.shape, left.size(1))
    pointers = [
        None if one is None else ctypes.c_void_p(one.data_ptr()) for one in (left, right, bias, product)
    ]
    call = getattr(native.library(), CALLS[left.dtype])
    if product.numel() and call(*pointers, sizes, torch.get_num_threads()):
        raise MemoryError("not enough memory for a product")
    return product
