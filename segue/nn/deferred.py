"""Deferred initialisation: a model is built on the meta device, and its weights are drawn later, one by one.

Each weight gets the numbers that it would have got at once, so a model larger than one process's memory starts as it
would have in one process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

RANDOM = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)
PLAIN = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
"""All operations that initialise our models."""

FILLING = {getattr(place, name) for place in (nn.init, Tensor) for name in ("normal_", "uniform_")} | {
    nn.init.kaiming_uniform_,
    nn.init.constant_,
    Tensor.fill_,
    Tensor.zero_,
}
"""The same as Python functions."""

Model = TypeVar("Model", bound=nn.Module)
Draws = dict[str, Callable[[], Tensor]]
"""For each weight by its name, a function that draws it on the CPU without advancing the random generator."""


def deferred(build: Callable[[], Model]) -> tuple[Model, Draws]:
    """The model on the meta device, and how to draw its weights. The random generator advances as after drawing."""
    with _Noting() as noting, torch.device("meta"):
        model = build()
    return model, {name: noting.notes[_storage(weight)] for name, weight in model.named_parameters()}


@contextmanager
def blank() -> Iterator[None]:
    """Models that are built inside this context have shapes but no weights."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Skips initialisation: on the meta device it would import half of torch's compiler first, for two seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if function in FILLING:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


class _Noting(TorchDispatchMode):
    """Records how each weight was filled last, and the state of the random generator before it."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[int, Callable[[], Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if function in (*RANDOM, *PLAIN) and args[0].is_meta:
            fill = partial(_filled, function, args[0].shape, args[0].dtype, args[1:])
            self.notes[_storage(args[0])] = partial(_filled_again, fill, torch.get_rng_state())
            if function in RANDOM:
                fill()
        return function(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _filled(function: Any, shape: torch.Size, kind: torch.dtype, values: tuple[Any, ...]) -> Tensor:
    filled: Tensor = function(torch.empty(shape, dtype=kind, device="cpu"), *values)
    return filled


def _filled_again(fill: Callable[[], Tensor], state: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=()):
        torch.set_rng_state(state)
        return fill()
