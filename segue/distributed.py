"""Distributed training: several processes (ranks) that work as one. The only file that names torch.distributed.

torchrun starts the processes and sets each one's rank and the world size in the environment (`launch.py`). Without
torchrun there is one process, `ALONE`, whose collective operations return at once, so callers need no special case.
Rank 0 reports errors: an error that occurs on all ranks is an `OtherRankError` on the others, which is not printed.
"""

import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from segue.errors import BundleError, OtherRankError, SegueError, TrainingError
from segue.launch import Rendezvous, launch_error, rendezvous

LOST_RANK = re.compile(
    r"gloo|nccl|timed out|timeout|connection (closed|reset|refused)|broken pipe", re.IGNORECASE
)
"""Messages of torch's backends about a rank that does not answer."""

FORWARD_METHODS = ("project_source", "within")
"""Methods that use weights as `forward` does: FSDP must gather the weights for them too."""

Value = TypeVar("Value")


class Ranks:
    """One process alone: rank 0 of a world size of 1."""

    rank, world_size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which prints and writes files."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """The indices of `count` items that belong to this rank: a contiguous block."""
        each = count // self.world_size
        return range(self.rank * each, (self.rank + 1) * each)

    def all_reduce_sum(self, value: float) -> float:
        """The sum of all ranks' values, the same on every rank."""
        return value

    def all_reduce_mean(self, value: float) -> float:
        """The mean of all ranks' values, the same on every rank."""
        return self.all_reduce_sum(value) / self.world_size

    def all_reduce_max(self, value: int) -> int:
        """The maximum of all ranks' values, the same on every rank."""
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of the ranks."""
        return [value]

    def on_every_rank(self, do: Callable[[], Value]) -> Value:
        """Call `do` on every rank. If it fails on one, every rank raises, and rank 0 tells why."""
        return do()

    def from_rank_zero(self, do: Callable[[], Value]) -> Value:
        """Call `do` on rank 0 only and broadcast what it returns. If it fails, every rank raises."""
        return do()

    def check_same(self, what: str, value: Any) -> None:
        """Raise on every rank if the ranks have different values."""

    def error(self, message: str) -> SegueError:
        """An error for all ranks to raise together: only rank 0 shows the message."""
        return TrainingError(message) if self.first else OtherRankError(message)

    def seed(self, seed: int, step: int = 0) -> None:
        """Seed every rank but rank 0 with a seed of its own. Rank 0 keeps the random numbers of a single process."""
        if not self.first:
            torch.manual_seed(int(np.random.SeedSequence([seed, self.rank, step]).generate_state(1)[0]))

    def data_parallel(self, objective: nn.Module) -> nn.Module:
        """The objective under DistributedDataParallel: its gradients are the mean over all ranks."""
        return objective

    def shard(
        self,
        objective: nn.Module,
        blocks: Sequence[nn.Module],  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
        *,
        half: bool,  # noqa: ARG002
    ) -> nn.Module:
        """The objective under FSDP2: each rank holds a shard of each weight, and one block at a time is gathered.

        With `half`, weights are gathered and multiplied in bfloat16, and gradients are summed over ranks in float32.
        """
        return objective

    def save(
        self,
        folder: Path,  # noqa: ARG002
        files: Mapping[str, Mapping[str, Tensor]],  # noqa: ARG002
        alongside: Callable[[], None],  # noqa: ARG002
        finish: Callable[[], None],
    ) -> None:
        """Write sharded tensors into files of a folder, call `alongside` on each rank, then `finish` on rank 0.

        Several ranks save in the background, with the tensors' present values. One process alone only calls `finish`.
        """
        finish()

    def wait_for_save(self) -> None:
        """Wait until the checkpoint that is being saved is on the disk."""


ALONE = Ranks()


def distributed_like(weight: Tensor, tensor: Tensor) -> Tensor:
    """A fresh copy of a whole tensor, on the weight's device, and sharded as the weight is."""
    if not _is_sharded(weight) or tensor.shape != weight.shape:
        return tensor.clone().to(weight.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(weight, DTensor)
    mesh, here = weight.device_mesh, tensor.to(weight.device)
    return distribute_tensor(here, mesh, weight.placements, src_data_rank=None).clone()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all ranks if it is sharded."""
    if not _is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def _is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor. (Importing that class takes a second, and one process alone has none.)"""
    return hasattr(tensor, "device_mesh")


def set_gradient_sync(trained: nn.Module, sync: bool) -> None:
    """Whether the next backward pass all-reduces gradients. Only a step's last micro-batch has to."""
    if isinstance(trained, DistributedDataParallel):
        trained.require_backward_grad_sync = sync


class ProcessGroup(Ranks):
    """One of several processes: a rank of torch's default process group."""

    def __init__(self, timeout: float) -> None:
        self.rank, self.world_size, self._timeout = dist.get_rank(), dist.get_world_size(), timeout
        limit = timedelta(seconds=timeout)
        plain = dist.get_backend() == "gloo"
        # numbers and messages are on the CPU: they travel with gloo, also where gradients travel with nccl
        self._cpu_group = dist.group.WORLD if plain else dist.new_group(backend="gloo", timeout=limit)
        self._save_group = dist.new_group(backend="gloo", timeout=limit)
        self._background, self._saving = ThreadPoolExecutor(max_workers=1), _completed()

    def all_reduce_sum(self, value: float) -> float:
        return self._all_reduce(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.SUM)

    def all_reduce_max(self, value: int) -> int:
        return int(self._all_reduce(torch.tensor(value), dist.ReduceOp.MAX))

    def _all_reduce(self, number: Tensor, operation: Any) -> float:
        dist.all_reduce(number, operation, group=self._cpu_group)
        return number.item()

    def all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._cpu_group)
        return values

    def on_every_rank(self, do: Callable[[], Value]) -> Value:
        returned: list[Value] = []
        message = ""
        try:
            returned.append(do())
        except SegueError as error:
            message = str(error)
        for rank, other in enumerate(self.all_gather(message)):
            if other:
                raise self.error(other if rank == 0 else f"rank {rank}: {other}")
        return returned[0]

    def from_rank_zero(self, do: Callable[[], Value]) -> Value:
        own = self.on_every_rank(lambda: do() if self.first else None)
        value: Value = self.all_gather(own)[0]
        return value

    def check_same(self, what: str, value: Any) -> None:
        values = self.all_gather(value)
        others = [str(rank) for rank, other in enumerate(values) if other != values[0]]
        if others:
            ranks = f"rank {others[0]} has" if len(others) == 1 else f"ranks {', '.join(others)} have"
            raise self.error(f"{ranks} another {what} than rank 0; start all of them with the same")

    def data_parallel(self, objective: nn.Module) -> nn.Module:
        return DistributedDataParallel(objective, gradient_as_bucket_view=True)

    def shard(
        self, objective: nn.Module, blocks: Sequence[nn.Module], device: torch.device, *, half: bool
    ) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            MixedPrecisionPolicy,
            fully_shard,
            register_fsdp_forward_method,
        )

        warnings.filterwarnings(
            "ignore", message="FSDP2-wrapped module .* returned a view"
        )  # it is only read
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
        mesh = init_device_mesh(device.type, (self.world_size,))
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(objective, mesh=mesh, mp_policy=policy)
        for module in (*blocks, objective):
            for name in FORWARD_METHODS:
                if hasattr(module, name):
                    register_fsdp_forward_method(module, name)
        return objective

    def save(
        self,
        folder: Path,
        files: Mapping[str, Mapping[str, Tensor]],
        alongside: Callable[[], None],
        finish: Callable[[], None],
    ) -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        tensors = {name: value for contents in files.values() for name, value in contents.items()}
        index = {name: number for number, contents in enumerate(files.values(), 1) for name in contents}
        writer = HuggingFaceStorageWriter(
            str(folder), fqn_to_index_mapping=index, save_distributed=True, enable_consolidation=True
        )
        # Torch writes zeros for a tensor without dimensions when it consolidates shards: see docs/decisions
        to_save = {
            name: value if value.dim() else value.view(1)
            for name, value in tensors.items()
            if self.first or _is_sharded(value)  # rank 0 alone writes what every rank has whole
        }
        written = async_save(to_save, storage_writer=writer, process_group=self._save_group)
        assert isinstance(written, Future)

        def wait_and_finish() -> None:
            alongside()
            written.result()
            dist.barrier(group=self._save_group)
            if self.first:
                _rename_consolidated(folder, list(files), max(index.values()))
                finish()

        self._saving = self._background.submit(wait_and_finish)

    def wait_for_save(self) -> None:
        self.on_every_rank(lambda: _raise_if_failed(self._saving))

    def lost_rank_error(self, *, timed_out: bool) -> SegueError:
        """An error that names the ranks that do not answer any more.

        Ranks that still run say so in the key-value store, which needs no connection between ranks. After a timeout
        they notice one after another, so this waits longer; after a broken connection they notice at once.
        """
        store = dist.distributed_c10d._get_default_store()
        grace = min(30.0, self._timeout) if timed_out else 1.0
        alive, end = {self.rank}, time.monotonic() + grace
        try:
            store.set_timeout(timedelta(seconds=grace))
            store.set(f"segue/heard/{self.rank}", "")
            while len(alive) < self.world_size and time.monotonic() < end:
                alive = {rank for rank in range(self.world_size) if store.check([f"segue/heard/{rank}"])}
                time.sleep(0.05)
        except RuntimeError:  # the store does not answer, and rank 0 holds it
            return TrainingError(f"rank {self.rank} has no answer from rank 0; go on with --resume")
        missing = ", ".join(str(rank) for rank in range(self.world_size) if rank not in alive)
        if self.rank > min(alive):
            return OtherRankError("another rank tells the reason")
        if not missing:
            return TrainingError("the ranks lost the connection to each other; go on with --resume")
        return TrainingError(
            f"no answer from rank {missing}: stopped, killed or cut off; go on with --resume"
        )


def _completed() -> "Future[None]":
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _raise_if_failed(saving: "Future[None]") -> None:
    """Wait for a save in the background, and raise what went wrong in it."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        saving.result()
    except SegueError:
        raise
    except (CheckpointException, OSError) as error:
        raise BundleError(f"a checkpoint could not be saved: {error}".splitlines()[0]) from error


def _rename_consolidated(folder: Path, names: Sequence[str], count: int) -> None:
    """Give torch's consolidated files our names, and delete the shards that they were made of."""
    for number, name in enumerate(names[:count], 1):
        (folder / f"model-{number:05d}-of-{count:05d}.safetensors").rename(folder / name)
    shutil.rmtree(folder / "sharded")
    (folder / "model.safetensors.index.json").unlink()


_current: list[Ranks] = []
"""The process group of this process, if it has one: nested calls of `process_group` give the same one."""


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The process group that the environment describes, or this process alone."""
    if _current:
        yield _current[0]
        return
    place = rendezvous()
    if place is None:
        yield ALONE
        return
    group = _init_process_group(place)
    _current.append(group)
    try:
        yield group
    except (RuntimeError, dist.DistError) as error:
        if LOST_RANK.search(str(error)):
            raise group.lost_rank_error(timed_out="timed out" in str(error).lower()) from error
        raise
    finally:
        _current.clear()
        dist.destroy_process_group()


def _init_process_group(place: Rendezvous) -> ProcessGroup:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    timeout, is_server = timedelta(seconds=place.timeout), place.rank == 0 and not place.agent_store
    try:
        shared = TCPStore(place.host, place.port, place.world_size, is_server, timeout, multi_tenant=True)
        # restarted ranks may use the same store, which still holds the addresses of the ranks before them
        store = PrefixStore(f"segue/{place.restarts}", shared)
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout
        )
        return ProcessGroup(place.timeout)
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            raise launch_error(
                f"port {place.port} of {place.host} is in use; choose another with --master-port"
            ) from None
        reason = str(error).splitlines()[0]
        raise launch_error(f"the ranks could not connect at {place.host}:{place.port}: {reason}") from None
