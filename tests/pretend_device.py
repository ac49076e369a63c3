"""A pretend accelerator: a device that is not the CPU, for machines that have no other.

Tensors on `DEVICE` hold CPU data. As on a GPU, an operation refuses to mix them with the CPU's, and some operations
make the host wait until the device has caught up: `waits` counts them. Importing this registers the device with torch
for good, so only a process of its own does (`test_device.py`).

Unlike a GPU, it computes at once and with the CPU's kernels: it tells where tensors lie and who waits for whom, not
how fast or how exact a GPU is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"

TOLD = {"_local_scalar_dense", "equal", "is_nonzero"}
"""Operations that tell the host a number: `item`, `tolist`, `int`, `bool`."""

SIZED = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
"""Operations whose result has a size that the device alone knows."""

CHECKED = {"multinomial"}
"""Operations that look at their input first: CUDA's asks whether all probabilities are numbers."""

COPIES = {"copy_", "_to_copy", "_copy_from", "_copy_from_and_resize"}
PACKED = {"_pack_padded_sequence", "_pack_padded_sequence_backward", "_pad_packed_sequence"}
"""Operations whose lengths are the CPU's."""

INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
CPU = torch.device("cpu")


class Counts:
    """What has happened on the device."""

    waits: ClassVar[Counter[str]] = Counter()  # of the host, by the name of the operation
    largest = 0  # numbers in the largest tensor that was computed


class PretendModule(_DummyBackendModule):  # type: ignore[misc]
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, PretendModule())
DEVICE = torch.device(NAME, 0)


class PretendGenerator(torch.Generator):
    """Random numbers of the device."""

    own: ClassVar[set[int]] = set()

    def __new__(cls, device: Any = CPU) -> "PretendGenerator":
        del device
        made = super().__new__(cls)
        cls.own.add(made._cdata)  # an operation gets another Python object of the same generator
        return made


@contextmanager
def generators() -> Iterator[None]:
    """In this block `torch.Generator` makes generators of the device: a device of Python has no other way."""
    plain, torch.Generator = torch.Generator, PretendGenerator  # type: ignore[misc]
    yield
    torch.Generator = plain  # type: ignore[misc]


class PretendTensor(Tensor):
    """A tensor of the device."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "PretendTensor":
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.size(), raw.stride(), raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        made.raw = raw
        return made  # type: ignore[no-any-return]

    def __init__(self, raw: Tensor) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"pretend {self.raw!r}"

    def tolist(self) -> Any:  # torch's own refuses subclasses
        return self.cpu().tolist()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        with torch._C.DisableTorchFunctionSubclass():
            if function.__name__ in RECURRENT:
                return _recurrent(function, args)
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _computed(function, args, kwargs or {})


def _computed(function: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operation with the CPU's data."""
    name, given = function.overloadpacket.__name__, [*_flat(args), *_flat(kwargs.values())]
    here = [one for one in given if isinstance(one, PretendTensor)]
    _check_devices(name, args, given)
    stays = bool(here) if kwargs.get("device") is None else kwargs["device"].type == NAME
    if here and _waits(name, args, kwargs, stays):
        Counts.waits[name] += 1
    if kwargs.get("device") is not None and stays:
        kwargs = {**kwargs, "device": CPU}
    outcome = function(
        *(_mapped(_raw, one) for one in args), **{key: _mapped(_raw, one) for key, one in kwargs.items()}
    )
    if name == "_pack_padded_sequence":
        return PretendTensor(outcome[0]), outcome[1]
    own = {id(one.raw): one for one in here}  # what is written in place stays the same tensor
    return (
        _mapped(lambda one: _back(one, own) if isinstance(one, Tensor) else one, outcome)
        if stays
        else outcome
    )


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """All values in (lists of) values. Torch's own trees know more, and take most of the time here."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    return (
        type(value)(_mapped(change, one) for one in value)
        if isinstance(value, list | tuple)
        else change(value)
    )


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, PretendTensor) else value


def _back(raw: Tensor, own: dict[int, PretendTensor]) -> PretendTensor:
    Counts.largest = max(Counts.largest, raw.numel())
    return own[id(raw)] if id(raw) in own else PretendTensor(raw)


def _check_devices(name: str, args: Any, given: list[Any]) -> None:
    """Refuse to mix devices, except for what a GPU takes too: single numbers, and an index from the CPU."""
    here = [one for one in given if isinstance(one, PretendTensor)]
    if not here or name in COPIES | PACKED or (name in INDEXED and isinstance(args[0], PretendTensor)):
        return
    strangers = [one for one in given if isinstance(one, Tensor) and one.device != DEVICE and one.dim()]
    if strangers:
        raise RuntimeError(f"{name}: found tensors on {DEVICE} and on {strangers[0].device}")
    if any(isinstance(one, torch._C.Generator) and one._cdata not in PretendGenerator.own for one in given):
        raise RuntimeError(f"{name}: found a tensor on {DEVICE} and a generator of the CPU")


def _waits(name: str, args: Any, kwargs: Any, stays: bool) -> bool:
    """Whether a GPU would make the host wait here."""
    if name == "copy_":  # to the device; what leaves it waits in any case
        target, source, *non_blocking = args
        there = any(not isinstance(one, PretendTensor) and one.dim() for one in (target, source))
        leaves = not isinstance(target, PretendTensor)
        return leaves or (there and not (non_blocking or [kwargs.get("non_blocking", False)])[0])
    if name in COPIES:
        return not stays
    if name in INDEXED:
        index = [one for one in args[1] if isinstance(one, Tensor)]
        return any(one.dtype == torch.bool or not isinstance(one, PretendTensor) for one in index)
    return name in TOLD | SIZED | CHECKED


LIBRARY = torch.library.Library("aten", "IMPL")


@torch.library.impl(LIBRARY, "empty.memory_format", "PrivateUse1")
def _empty(size: Any, **options: Any) -> Tensor:
    return PretendTensor(torch.empty(size, dtype=options.get("dtype")))


@torch.library.impl(LIBRARY, "empty_strided", "PrivateUse1")
def _empty_strided(size: Any, stride: Any, **options: Any) -> Tensor:
    return PretendTensor(torch.empty_strided(size, stride, dtype=options.get("dtype")))


@torch.library.impl(LIBRARY, "_copy_from", "PrivateUse1")
def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """For where torch leaves out `__torch_dispatch__`, as `torch.tensor(…, device=…)` does."""
    return _computed(torch.ops.aten.copy_.default, (target, source, non_blocking), {})  # type: ignore[no-any-return]


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """Count the waits in this block."""
    before, counted = Counter(Counts.waits), Counter[str]()
    yield counted
    counted.update(Counts.waits - before)


@contextmanager
def largest() -> Iterator[list[int]]:
    """The size of the largest tensor that is computed in this block."""
    Counts.largest, sizes = 0, []
    yield sizes
    sizes.append(Counts.largest)


LOWER = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "conv1d", "scaled_dot_product_attention")
EXACT = ("softmax.int", "log_softmax.int", "layer_norm", "cumsum", "sum.dim_IntList", "exp", "log")
"""What autocast computes in the lower precision, and what in float32; as CUDA's lists, where we use them."""

AUTOCAST = torch.library.Library("aten", "IMPL")
torch.library.Library.fallback(
    UNKNOWN := torch.library.Library("_", "IMPL"), torch.library.fallthrough_kernel, "AutocastPrivateUse1"
)


def _register_cast(name: str, lower: bool) -> None:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def cast(*args: Any, **kwargs: Any) -> Any:
        kind = torch.get_autocast_dtype(NAME) if lower else torch.float32

        def as_kind(value: Any) -> Any:
            floating = isinstance(value, Tensor) and value.dtype in (torch.float32, torch.bfloat16)
            return value.to(kind) if floating else value

        with torch.autocast(NAME, enabled=False):
            return operation(*map(as_kind, args), **kwargs)

    AUTOCAST.impl(name, cast, "AutocastPrivateUse1")


for _name in (*LOWER, *EXACT):
    _register_cast(_name, _name in LOWER)


RECURRENT = {"rnn_tanh", "gru", "lstm"}


def _recurrent(function: Any, args: Any) -> Any:
    """Torch's recurrent layers as one operation, as cuDNN's."""
    given, shape = tree_flatten(args)
    places = [place for place, one in enumerate(given) if isinstance(one, PretendTensor)]

    def read(*raws: Tensor) -> Any:
        filled = list(given)
        for place, raw in zip(places, raws, strict=True):
            filled[place] = raw
        return function(*tree_unflatten(filled, shape))

    return _Recurrent.apply(read, *(given[place] for place in places))


class _Recurrent(torch.autograd.Function):
    """Computed by the CPU, with the CPU's gradients."""

    @staticmethod
    def forward(ctx: Any, read: Any, *tensors: Any) -> Any:
        ctx.inputs = [_raw(one).detach().requires_grad_() for one in tensors]
        with torch.enable_grad():
            ctx.outputs = read(*ctx.inputs)
        return tuple(PretendTensor(one.detach()) for one in ctx.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        arriving = [_raw(one) for one in gradients]
        to_inputs = torch.autograd.grad(ctx.outputs, ctx.inputs, arriving, allow_unused=True)
        return None, *(None if one is None else PretendTensor(one) for one in to_inputs)
