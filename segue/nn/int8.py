"""Linear layers with 8-bit integer weights, one scale per output: a quarter of the bytes to read for every token.

For engines on x86 CPUs. The products are fbgemm's, which comes with torch: exact sums of integers. Inputs are rounded
too, each row with its own scale. One scale for many rows, as in torch's `linear_dynamic`, would let the result of a
token depend on the tokens beside it and after it.
"""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segue.errors import InputError

STEPS = 90
"""Weights are rounded to -90 … 90, inputs to 181 steps, held as 0 … 180.

Processors without VNNI add two products in 16 bits, where larger ones would saturate: 2 · 180 · 90 < 2¹⁵.
"""

PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"
"""Of torch.ops.quantized: rounds to a scale and a zero point that are given, and returns float32."""


class PlainInt8(NamedTuple):
    """The weights of an Int8Linear."""

    weight: Tensor  # (outputs, inputs), 8-bit
    scales: Tensor  # (outputs,)
    offsets: Tensor  # (outputs,) the row's sum times `zero`, in 32 bits
    step: float  # of the inputs
    zero: int  # the step that stands for 0
    bias: Tensor | None


class Int8Linear:
    """A linear layer in int8.

    `zero` is the step that stands for 0: in the middle, or the lowest for a layer whose inputs are never negative.
    """

    def __init__(self, exact: nn.Linear, *, zero: int = STEPS) -> None:
        weight = exact.weight.detach()
        scales = (weight.abs().amax(dim=1) / STEPS).clamp(min=1e-12).double()
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch: quantized tensors will go, in some release to come
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None)
        self._bias = None if exact.bias is None else exact.bias.detach()
        self._zero, self._step = zero, 1 / (2 * STEPS - zero)

    def plain(self) -> "PlainInt8":
        """The same weights as plain tensors, for native code."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rounded, _ = torch.ops.quantized.linear_unpack(self._packed)
            scales = rounded.q_per_channel_scales().float()
            weight = rounded.int_repr().contiguous()
            offsets = weight.sum(dim=1, dtype=torch.int32) * self._zero
            return PlainInt8(weight, scales, offsets, self._step, self._zero, self._bias)

    def __call__(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(0, -2).float()  # autocast may have made them shorter
        largest = rows.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-30)  # a row of zeros stays one
        product = getattr(torch.ops.quantized, PRODUCT)
        outputs: Tensor = product(rows / largest, self._step, self._zero, self._packed).mul_(largest)
        if self._bias is not None:
            outputs += self._bias
        return outputs.view(*inputs.shape[:-1], outputs.size(-1))

    def step(self, inputs: Tensor) -> Tensor:
        return self(inputs)


def check_int8(model: nn.Module) -> None:
    """Refuse what cannot be rounded here."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise InputError(
            f"int8 is for float32 models on a CPU; this one is {weight.dtype} on {weight.device.type}"
        )
    engines = torch.backends.quantized.supported_engines
    if "fbgemm" not in engines or not hasattr(torch.ops.quantized, PRODUCT):
        raise InputError(
            "int8 needs fbgemm, which torch has on x86 and may have lost in a later release; leave --int8 out"
        )
    torch.backends.quantized.engine = "fbgemm"
