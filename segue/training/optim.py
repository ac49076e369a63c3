"""Optimizers and learning-rate schedules."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from segue.distributed import distributed_like
from segue.recipe import EncoderTrainConfig, Schedule
from segue.training.muon import Muon

NONE: Mapping[str, nn.Parameter] = MappingProxyType({})


def learning_rate_at(step: int, train: Schedule) -> float:
    """The learning rate of a step, counted from 0."""
    first_step, held = 0, False
    for extended_at, how in train.extensions:
        if extended_at <= step and how != "stretch":
            first_step, held = extended_at, how == "hold"
    if held:
        return learning_rate_at(first_step - 1, train)
    later = (at for at, how in train.extensions if at > step and how != "stretch")
    return _scheduled(step - first_step, next(later, train.steps) - first_step, train)


def _scheduled(step: int, steps: int, train: Schedule) -> float:
    """The learning rate at a step of a schedule of `steps` steps."""
    if step < train.warmup:
        return train.learning_rate * (step + 1) / train.warmup
    progress = min(1.0, (step - train.warmup) / max(1, steps - train.warmup))
    match train.schedule:
        case "cosine":
            share = train.floor + (1 - train.floor) * 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            share = train.floor + (1 - train.floor) * (1 - progress)
        case "inverse-sqrt":
            share = math.sqrt(max(1, train.warmup) / (step + 1))
        case "constant":
            cooling = max(0, step - (steps - train.cooldown)) if train.cooldown else 0
            share = 1 - (1 - train.floor) * min(1.0, cooling / max(1, train.cooldown))
    return train.learning_rate * share


def build_optimizers(
    model: nn.Module, train: Schedule, heads: Mapping[str, nn.Parameter] = NONE
) -> list[Optimizer]:
    """One optimizer for everything, or Muon for the matrices inside the layers and AdamW for the rest.

    `heads` are weights of the objective, beside the model's.
    """
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad} | dict(heads)
    adam: dict[str, Any] = {
        "lr": train.learning_rate,
        "betas": (train.beta1, train.beta2),
        "eps": train.epsilon,
        "fused": True,
    }
    decay = train.weight_decay
    if train.optimizer == "adam":
        return [torch.optim.Adam(named.values(), **adam)]
    if train.optimizer == "adamw":
        return [torch.optim.AdamW(_decayed(named, train), weight_decay=decay, **adam)]
    if train.optimizer in ("sgd", "nesterov"):
        nesterov = train.optimizer == "nesterov" and train.beta1 > 0
        momentum: dict[str, Any] = {"momentum": train.beta1, "nesterov": nesterov, "weight_decay": decay}
        return [torch.optim.SGD(named.values(), lr=train.learning_rate, fused=True, **momentum)]
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices = {
        name
        for name, weight in named.items()
        if weight.dim() == 2
        and weight not in tables
        and any(part in name for part in ("blocks.", "cells.", "encoder.", "decoder."))
    }
    rest = {name: weight for name, weight in named.items() if name not in matrices}
    return [
        Muon([named[name] for name in sorted(matrices)], train.learning_rate, weight_decay=decay),
        torch.optim.AdamW(_decayed(rest, train), weight_decay=decay, **adam),
    ]


def _decayed(named: Mapping[str, nn.Parameter], train: Schedule) -> Any:
    """The weights in groups by their decay: BERT's norms and biases have none."""
    if not isinstance(train, EncoderTrainConfig):
        return list(named.values())
    matrices, vectors = (
        [weight for weight in named.values() if (weight.dim() > 1) is many] for many in (True, False)
    )
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def set_learning_rate(optimizers: Sequence[Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def optimizer_tensors(weights: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The optimizers' state (momentum, moments, step) of each weight, named after the weight."""
    states: dict[Tensor, dict[str, Any]] = {}
    for optimizer in optimizers:
        states |= optimizer.state
    return {
        f"{name}:{key}": value
        for name, weight in weights.items()
        for key, value in states.get(weight, {}).items()
    }


def restore_optimizers(
    weights: Mapping[str, Tensor], optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Set the optimizers' state to what `optimizer_tensors` returned."""
    owners = {
        weight: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for weight in group["params"]
    }
    for full, value in tensors.items():
        name, key = full.rsplit(":", 1)
        weight = weights[name]
        # copy: how memory is aligned changes the last bit of some matrix products
        owners[weight].state[weight][key] = distributed_like(
            weight, value.view(()) if key == "step" else value
        )
