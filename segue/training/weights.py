"""The weights that a run begins with: whole ones on every rank, or a part of each."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from segue.distributed import Ranks, distributed_like
from segue.nn.block import Block
from segue.nn.deferred import deferred
from segue.recipe import Schedule
from segue.training.embedding import freeze

Model = TypeVar("Model", bound=nn.Module)


def in_parts(train: Schedule, ranks: Ranks) -> bool:
    return train.sharded and ranks.world_size > 1


def begin(
    build: Callable[[], Model],
    objective: Callable[[Model], nn.Module],
    given: Mapping[str, Tensor] | None,
    train: Schedule,
    device: torch.device,
    ranks: Ranks,
) -> tuple[Model, nn.Module]:
    """A model with the given weights or fresh ones, and its objective as a step calls it."""
    torch.manual_seed(train.seed)
    if not in_parts(train, ranks):
        model = build()
        if given is not None:
            model.load_state_dict(given)
        freeze(model, train)
        return model, ranks.data_parallel(objective(model.to(device)))
    model, draws = deferred(build)  # it is never whole anywhere
    freeze(model, train)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    trained = ranks.shard(objective(model), blocks, device, half=train.precision == "bfloat16")
    trained.to_empty(device=device)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(distributed_like(weight, draws[name]() if given is None else given[name]))
    return model, trained
