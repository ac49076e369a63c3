"""Initial weights of a run: fresh or given ones, whole on every rank or sharded over the ranks."""

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


def is_sharded(train: Schedule, ranks: Ranks) -> bool:
    """Whether the ranks hold shards of the weights (FSDP2)."""
    return train.sharded and ranks.world_size > 1


def initial_model(
    build: Callable[[], Model],
    objective: Callable[[Model], nn.Module],
    weights: Mapping[str, Tensor] | None,
    train: Schedule,
    device: torch.device,
    ranks: Ranks,
) -> tuple[Model, nn.Module]:
    """A model with the given weights, fresh where there are none; and its objective, wrapped for all ranks."""
    torch.manual_seed(train.seed)
    if not is_sharded(train, ranks):
        model = build()
        if weights is not None:
            model.load_state_dict({**model.state_dict(), **weights})
        freeze(model, train)
        return model, ranks.data_parallel(objective(model).to(device))
    built: list[Model] = []

    def build_both() -> nn.Module:
        built.append(build())
        return objective(built[0])

    whole, draws = deferred(build_both)  # no rank ever holds the whole model
    model = built[0]
    freeze(model, train)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    trained = ranks.shard(whole, blocks, device, half=train.precision == "bfloat16")
    trained.to_empty(device=device)
    given = {f"model.{name}": weight for name, weight in (weights or {}).items()}
    with torch.no_grad():
        for name, weight in trained.named_parameters():
            weight.copy_(distributed_like(weight, given[name] if name in given else draws[name]()))
    return model, trained
