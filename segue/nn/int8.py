"""Weights as 8-bit integers, a scale for each output: a quarter of the bytes to read for every token.

For reading with fixed weights on x86 CPUs. The products are fbgemm's, which torch brings along; what enters them is
rounded too, to 7 bits of its own range, so that sums of products fit on processors without VNNI.
"""

import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn

from segue.errors import InputError
from segue.nn.block import Block

Model = TypeVar("Model", bound=nn.Module)


class Int8Linear(nn.Module):
    """What stands in for a linear layer."""

    def __init__(self, exact: nn.Linear) -> None:
        super().__init__()
        weight = exact.weight.detach()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12).double()
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch: quantized tensors will go, in some release to come
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, exact.bias)

    def forward(self, given: Tensor) -> Tensor:
        rows = torch.ops.quantized.linear_dynamic(given.flatten(0, -2), self._packed, True)
        found: Tensor = rows.view(*given.shape[:-1], rows.size(-1))
        return found


def in_int8(model: Model) -> Model:
    """The model itself, the linear layers of its blocks rounded from now on. It can read, and not learn."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise InputError(
            f"int8 is for float32 models on a CPU; this one is {weight.dtype} on {weight.device.type}"
        )
    engines = torch.backends.quantized.supported_engines
    if "fbgemm" not in engines or not hasattr(torch.ops.quantized, "linear_dynamic"):
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
                    setattr(parent, name, Int8Linear(child))
    return model.eval().requires_grad_(False)
