"""Several processes that work as one. The only file that names torch.distributed.

torchrun starts the processes and says in the environment which rank each is of how many (`launch.py`). Without
it there is one process, `ALONE`, for which all that ranks do together is done already, so that nobody else has to ask.
Rank 0 speaks: what goes wrong on all ranks at once is an `OtherRankError` on the others, which nobody prints.
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
from segue.launch import Meeting, meeting, said

LOST = re.compile(r"gloo|nccl|timed out|timeout|connection (closed|reset|refused)|broken pipe", re.IGNORECASE)
"""How torch's backends complain of a rank that does not answer."""

ALSO_CALLED = ("project_source", "within")
"""Methods that need weights as forward does: what sharding wraps is told of them."""

Found = TypeVar("Found")


class Ranks:
    """One process alone."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks and writes."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of so many things in a row are its own: a block of neighbours."""
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def total(self, value: float) -> float:
        """The sum over all ranks; every rank gets the same."""
        return value

    def mean(self, value: float) -> float:
        return self.total(value) / self.size

    def highest(self, value: int) -> int:
        """The highest of all ranks' numbers."""
        return value

    def gathered(self, value: Any) -> list[Any]:
        """Every rank's value, in their order."""
        return [value]

    def together(self, do: Callable[[], Found]) -> Found:
        """Do it on every rank; if one of them fails, all do, and rank 0 says why."""
        return do()

    def agreed(self, find: Callable[[], Found]) -> Found:
        """What rank 0 finds, which is the only one to look."""
        return find()

    def check_same(self, what: str, value: Any) -> None:
        """Refuse to go on if ranks differ."""

    def error(self, message: str) -> SegueError:
        """To be raised by all ranks at once: rank 0 says it."""
        return TrainingError(message) if self.first else OtherRankError(message)

    def seed(self, seed: int, step: int = 0) -> None:
        """Random numbers of their own for all ranks but the first, which goes on with those of one process."""
        if not self.first:
            torch.manual_seed(int(np.random.SeedSequence([seed, self.rank, step]).generate_state(1)[0]))

    def spread(self, objective: nn.Module) -> nn.Module:
        """What training calls instead, whose gradients are the mean over all ranks."""
        return objective

    def shard(
        self,
        objective: nn.Module,
        blocks: Sequence[nn.Module],  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
        *,
        half: bool,  # noqa: ARG002
    ) -> nn.Module:
        """The same, with every rank holding its part of each weight; whole ones are there for one block at a time.

        With `half`, products are in bfloat16, and sums over ranks in float32.
        """
        return objective

    def save(
        self,
        folder: Path,  # noqa: ARG002
        files: Mapping[str, Mapping[str, Tensor]],  # noqa: ARG002
        alongside: Callable[[], None],  # noqa: ARG002
        finish: Callable[[], None],
    ) -> None:
        """Write tensors that ranks share into files of a folder, and what each does `alongside`; then `finish` once.

        Several ranks do so in the background, with the tensors as they are now. One process alone has only to finish.
        """
        finish()

    def settle(self) -> None:
        """Wait until what is being saved is on the disk."""


ALONE = Ranks()


def placed(weight: Tensor, whole: Tensor) -> Tensor:
    """A fresh copy of a tensor of the weight's shape, lying where the weight does: a part, if that is one."""
    if not _shared_out(weight) or whole.shape != weight.shape:
        return whole.clone().to(weight.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(weight, DTensor)
    mesh, here = weight.device_mesh, whole.to(weight.device)
    return distribute_tensor(here, mesh, weight.placements, src_data_rank=None).clone()


def value_of(tensor: Tensor) -> Tensor:
    """All of a tensor that may be shared out."""
    if not _shared_out(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def _shared_out(tensor: Tensor) -> bool:
    """Whether ranks hold parts of it: a DTensor, which takes a second to import and which one process never has."""
    return hasattr(tensor, "device_mesh")


def sum_gradients(trained: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass adds up gradients over ranks; of several in a step, only the last has to."""
    if isinstance(trained, DistributedDataParallel):
        trained.require_backward_grad_sync = wanted


class Group(Ranks):
    """One of several processes."""

    def __init__(self, timeout: float) -> None:
        self.rank, self.size, self._timeout = dist.get_rank(), dist.get_world_size(), timeout
        patience = timedelta(seconds=timeout)
        plain = dist.get_backend() == "gloo"
        # numbers and words travel between hosts, whatever gradients travel on
        self._hosts = dist.group.WORLD if plain else dist.new_group(backend="gloo", timeout=patience)
        self._savers = dist.new_group(backend="gloo", timeout=patience)
        self._background, self._saving = ThreadPoolExecutor(max_workers=1), _done()

    def total(self, value: float) -> float:
        return self._reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.SUM)

    def highest(self, value: int) -> int:
        return int(self._reduced(torch.tensor(value), dist.ReduceOp.MAX))

    def _reduced(self, number: Tensor, how: Any) -> float:
        dist.all_reduce(number, how, group=self._hosts)
        return number.item()

    def gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._hosts)
        return values

    def together(self, do: Callable[[], Found]) -> Found:
        found: list[Found] = []
        said = ""
        try:
            found.append(do())
        except SegueError as error:
            said = str(error)
        for rank, words in enumerate(self.gathered(said)):
            if words:
                raise self.error(words if rank == 0 else f"rank {rank}: {words}")
        return found[0]

    def agreed(self, find: Callable[[], Found]) -> Found:
        found = self.together(lambda: find() if self.first else None)
        value: Found = self.gathered(found)[0]
        return value

    def check_same(self, what: str, value: Any) -> None:
        values = self.gathered(value)
        others = [str(rank) for rank, other in enumerate(values) if other != values[0]]
        if others:
            ranks = f"rank {others[0]} has" if len(others) == 1 else f"ranks {', '.join(others)} have"
            raise self.error(f"{ranks} another {what} than rank 0; start all of them with the same")

    def spread(self, objective: nn.Module) -> nn.Module:
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
        )  # nobody writes to it
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
        mesh = init_device_mesh(device.type, (self.size,))
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(objective, mesh=mesh, mp_policy=policy)
        for module in (*blocks, objective):
            for name in ALSO_CALLED:
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

        tensors = {name: value for inside in files.values() for name, value in inside.items()}
        index = {name: place for place, inside in enumerate(files.values(), 1) for name in inside}
        writer = HuggingFaceStorageWriter(
            str(folder), fqn_to_index_mapping=index, save_distributed=True, enable_consolidation=True
        )
        # Where torch joins parts it writes zeros for a tensor without dimensions: see docs/decisions
        whole = {
            name: value if value.dim() else value.view(1)
            for name, value in tensors.items()
            if self.first or _shared_out(value)  # what all ranks hold, one of them copies and writes
        }
        written = async_save(whole, storage_writer=writer, process_group=self._savers)
        assert isinstance(written, Future)

        def wait_and_finish() -> None:
            alongside()
            written.result()
            dist.barrier(group=self._savers)
            if self.first:
                _rename(folder, list(files), max(index.values()))
                finish()

        self._saving = self._background.submit(wait_and_finish)

    def settle(self) -> None:
        self.together(lambda: _saved(self._saving))

    def lost(self, *, late: bool) -> SegueError:
        """Who does not answer any more, found out over the store, which is nobody's connection to anybody.

        Ranks that waited in vain find out one after the other; those whose connection broke, all at once.
        """
        store, grace = dist.distributed_c10d._get_default_store(), min(30.0, self._timeout) if late else 1.0
        heard, end = {self.rank}, time.monotonic() + grace
        try:
            store.set_timeout(timedelta(seconds=grace))
            store.set(f"segue/heard/{self.rank}", "")
            while len(heard) < self.size and time.monotonic() < end:
                heard = {rank for rank in range(self.size) if store.check([f"segue/heard/{rank}"])}
                time.sleep(0.05)
        except RuntimeError:  # the store itself does not answer, and rank 0 keeps it
            return TrainingError(f"rank {self.rank} has no answer from rank 0; go on with --resume")
        missing = ", ".join(str(rank) for rank in range(self.size) if rank not in heard)
        if self.rank > min(heard):
            return OtherRankError("told by another rank")
        if not missing:
            return TrainingError("the ranks lost each other; go on with --resume")
        return TrainingError(
            f"no answer from rank {missing}: stopped, killed or cut off; go on with --resume"
        )


def _done() -> "Future[None]":
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _saved(saving: "Future[None]") -> None:
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        saving.result()
    except SegueError:
        raise
    except (CheckpointException, OSError) as error:
        raise BundleError(f"a checkpoint could not be saved: {error}".splitlines()[0]) from error


def _rename(folder: Path, names: Sequence[str], count: int) -> None:
    """Torch has names of its own for the files that it joined; what it joined is not needed any more."""
    for place, name in enumerate(names[:count], 1):
        (folder / f"model-{place:05d}-of-{count:05d}.safetensors").rename(folder / name)
    shutil.rmtree(folder / "sharded")
    (folder / "model.safetensors.index.json").unlink()


_joined: list[Ranks] = []
"""The group that this process is in, if any: whoever joins again gets the same."""


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that the environment speaks of, or this process alone."""
    if _joined:
        yield _joined[0]
        return
    place = meeting()
    if place is None:
        yield ALONE
        return
    group = _join(place)
    _joined.append(group)
    try:
        yield group
    except (RuntimeError, dist.DistError) as error:
        if LOST.search(str(error)):
            raise group.lost(late="timed out" in str(error).lower()) from error
        raise
    finally:
        _joined.clear()
        dist.destroy_process_group()


def _join(place: Meeting) -> Group:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    patience, opens = timedelta(seconds=place.seconds), place.rank == 0 and not place.hosted
    try:
        shared = TCPStore(place.host, place.port, place.size, opens, patience, multi_tenant=True)
        # ranks that are started again may meet in the same store, where those before them left their addresses
        store = PrefixStore(f"segue/{place.attempt}", shared)
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.size, timeout=patience
        )
        return Group(place.seconds)
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            raise said(
                f"port {place.port} of {place.host} is in use; choose another with --master-port"
            ) from None
        reason = str(error).splitlines()[0]
        raise said(f"the ranks did not find each other at {place.host}:{place.port}: {reason}") from None
