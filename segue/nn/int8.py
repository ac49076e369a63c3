"""Weights as 8-bit integers, a scale for each output: a quarter of the bytes to read for every token.

For reading with fixed weights on x86 CPUs. The products are fbgemm's, which torch brings along: exact sums of integers.
What enters them is rounded too, every row by a scale of its own. A scale for many rows, as in torch's `linear_dynamic`,
would let a token's result depend on the tokens beside it and after it.
"""

import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn

from segue.errors import InputError
from segue.nn.block import Block, FeedForward

Model = TypeVar("Model", bound=nn.Module)

STEPS = 90
"""Weights are rounded to -90 … 90, what enters to 181 steps, held as 0 … 180.

Processors without VNNI add two products in 16 bits, where larger ones would saturate: 2 · 180 · 90 < 2¹⁵.
"""

PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"
"""Of torch.ops.quantized: rounds to a scale and a zero point that are given, and returns float32."""


class Int8Linear(nn.Module):
    """What stands in for a linear layer.

    `zero` is the step that stands for 0: in the middle, or the lowest, for a layer that nothing negative enters.
    """

    def __init__(self, exact: nn.Linear, *, zero: int = STEPS) -> None:
        super().__init__()
        weight = exact.weight.detach()
        scales = (weight.abs().amax(dim=1) / STEPS).clamp(min=1e-12).double()
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch: quantized tensors will go, in some release to come
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None)
        self._bias = None if exact.bias is None else exact.bias.detach()
        self._zero, self._step = zero, 1 / (2 * STEPS - zero)

    def forward(self, given: Tensor) -> Tensor:
        rows = given.flatten(0, -2)
        largest = rows.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-30)  # a row of zeros stays one
        product = getattr(torch.ops.quantized, PRODUCT)
        outputs: Tensor = product(rows / largest, self._step, self._zero, self._packed).mul_(largest)
        if self._bias is not None:
            outputs += self._bias
        return outputs.view(*given.shape[:-1], outputs.size(-1))


def in_int8(model: Model) -> Model:
    """The model itself, the linear layers of its blocks rounded from now on. It can read, and not learn."""
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
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise InputError("int8 is for Transformers; this model has none of their blocks")
    for block in blocks:
        for parent in [module for module in block.modules() if not isinstance(module, nn.Linear)]:
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    after_relu = isinstance(parent, FeedForward) and name == "outer" and not parent.gelu
                    setattr(parent, name, Int8Linear(child, zero=0 if after_relu else STEPS))
    return model.eval().requires_grad_(False)
