"""Whether weights from a file are those of a config: checked before anything is built or allocated for them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from segue.config import VocabularyConfig
from segue.errors import SegueError

KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Precisions that models are read in."""

NO_SIZES = {"divisor", "window", "global_tokens", "decoder_span"}
"""Settings that no weight's size depends on."""


def check_size(
    config: VocabularyConfig, weights: Mapping[str, Tensor], name: str, wrong: type[SegueError]
) -> None:
    """Refuse a config that asks for more than the weights could be.

    Every size of a model's shape is that of some weight, and every layer has weights of its own. A table of positions
    may be computed, but is not larger than all the rest.
    """
    sizes = config.model_dump(exclude=NO_SIZES)
    rows = sizes.get("max_positions", 0) + sizes.get("max_distance", 0)
    sizes["a table of positions"] = rows * config.width
    most = sum(weight.numel() for weight in weights.values())
    for key, value in sizes.items():
        limit = len(weights) if key.endswith("layers") else most
        size = len(value) if isinstance(value, tuple) else value
        if isinstance(size, int) and size > limit:
            raise wrong(
                f"{name}: the config says {key} {size:,}, and the weights are {most:,} numbers in "
                f"{len(weights):,} tensors; does it belong to them?"
            )


def check_kinds(weights: Mapping[str, Tensor], name: str, wrong: type[SegueError]) -> None:
    """Refuse weights that are no real numbers."""
    for key, weight in weights.items():
        if weight.dtype not in KINDS:
            raise wrong(
                f"{name}: {key} holds {weight.dtype}; weights should be real numbers of 16 to 64 bits"
            )


@contextmanager
def too_large(name: str, wrong: type[SegueError]) -> Iterator[None]:
    """Tell of shapes that torch cannot count, where a model is built on the meta device."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as error:
        raise wrong(f"{name}: the config asks for tensors that are too large: {error}") from None


def check_fit(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], name: str, wrong: type[SegueError]
) -> None:
    """Every tensor that the config asks for, in its shape, all of one precision, and no other."""
    for key in sorted(wanted.keys() - tensors.keys()):
        raise wrong(f"{name} lacks the tensor {key}, which its config asks for")
    for key in sorted(tensors.keys() - wanted.keys()):
        raise wrong(f"{name} holds a tensor {key}, which its config does not know")
    for key, tensor in tensors.items():
        if tensor.shape != wanted[key].shape:
            raise wrong(
                f"{name}: {key} has shape {tuple(tensor.shape)}; its config asks for {tuple(wanted[key].shape)}"
            )
    check_kinds(tensors, name, wrong)
    kinds = {str(tensor.dtype) for tensor in tensors.values()}
    if len(kinds) > 1:
        raise wrong(f"{name} should be of one precision; found {', '.join(sorted(kinds))}")
