"""Structures that several native sources read: linear layers and norms, field by field as in C++.

They hold addresses; whoever makes them keeps the tensors alive.
"""

import ctypes
from typing import Any

from torch import Tensor

from segue.nn.frozen_layer import FloatLinear
from segue.nn.frozen_layer import Norm as FrozenNorm
from segue.nn.int8 import PlainInt8

ADDRESS, SIZE = ctypes.c_void_p, ctypes.c_int64

WORK_OF_A_THREAD = 2**16
"""Multiplications in a layer that are worth one more thread: a thread waits for the others five times in each layer."""


def structure(name: str, **fields: Any) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Weights = structure(
    "Weights",
    **dict.fromkeys(("weights", "bias", "rounded", "scales", "offsets"), ADDRESS),
    step=ctypes.c_double,
    zero=SIZE,
    outputs=SIZE,
    inputs=SIZE,
)
Norm = structure("Norm", weight=ADDRESS, bias=ADDRESS, epsilon=ctypes.c_double)


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr() or None


def matrix(linear: FloatLinear | PlainInt8) -> ctypes.Structure:
    if isinstance(linear, FloatLinear):
        return Weights(
            address(linear.weight), address(linear.bias), None, None, None, 0, 0, *linear.weight.shape
        )
    tensors = (linear.bias, linear.weight, linear.scales, linear.offsets)
    return Weights(None, *map(address, tensors), linear.step, linear.zero, *linear.weight.shape)


def norm(frozen: FrozenNorm) -> ctypes.Structure:
    return Norm(address(frozen.weight), address(frozen.bias), frozen.epsilon)
