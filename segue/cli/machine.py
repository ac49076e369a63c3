"""Options for device, threads and precision, and the matmul speed of the machine."""

import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from segue.checkpoint import Bundle

Device = Annotated[str, typer.Option(help="The device: cpu, cuda, cuda:1, …")]
Threads = Annotated[
    int, typer.Option(envvar="SEGUE_THREADS", min=0, max=1024, help="CPU threads; 0 for one per core.")
]

Int8 = Annotated[
    bool, typer.Option("--int8", help="Weights as 8-bit integers: faster, a little less exact. CPU only.")
]

KVPrecision = Annotated[
    Literal["exact", "float16", "int8"],  # config.KVCache, whose import would take half of the time of --help
    typer.Option(
        help="Precision of keys and values in memory: the model's own, or fewer bits for less memory and more speed."
    ),
]


def use(threads: int, device: str) -> None:
    """Set the number of threads, and raise an error if the device is not available."""
    with _uncollected():
        import torch

    from segue import native
    from segue.cli.busy import watch_others
    from segue.cli.terminal import tell
    from segue.errors import InputError
    from segue.launch import local_world_size

    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // local_world_size()))
    if torch.get_num_threads() > 1:
        watch_others()
    native.announce_with(tell)
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{device}' is not available: {reason}") from None


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection while torch is imported for the first time, and none of what its import made later.

    Those objects stay for as long as the process. Collections would walk over all of them again and again.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def placed(bundle: "Bundle", device: str) -> "Bundle":
    """The bundle with its model on the device."""
    bundle.model.to(device)
    return bundle


def matmul_peak(device: str) -> float:
    """FLOP/s of a large matmul, the best of six: the machine's limit."""
    import torch

    left, right = torch.randn(768, 768, device=device), torch.randn(768, 768, device=device)
    best = float("inf")
    for _ in range(6):
        begin = time.perf_counter()
        (left @ right)[0, 0].item()
        best = min(best, time.perf_counter() - begin)
    return 2 * 768**3 / best
