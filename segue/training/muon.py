"""Muon: momentum with orthogonalised updates, for the matrices inside the layers (Jordan et al., 2024).

Torch's Muon multiplies in bfloat16. CPUs do that slowly, and some virtual machines that claim AMX crash with an illegal
instruction. This one computes in the weights' own precision, and all weights of one shape together.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration: they bring all singular values near 1 in few steps."""


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Matrices (N, rows, columns) with the same singular vectors and all singular values near 1 (0.7 to 1.2)."""
    first, third, fifth = COEFFICIENTS
    tall = matrices.size(-2) > matrices.size(-1)
    wide: Tensor = matrices.mT if tall else matrices
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = wide @ wide.mT
        wide = first * wide + torch.baddbmm(third * square, square, square, alpha=fifth) @ wide
    return wide.mT if tall else wide


class Muon(Optimizer):
    """The update is scaled to the size of Adam's, so that one learning rate fits both."""

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        learning_rate: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            list(weights), {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes.setdefault(weight.shape, []).append(weight)
            for weights in shapes.values():
                self._update(weights, group["lr"], group["momentum"], group["weight_decay"])

    def _update(
        self, weights: Sequence[nn.Parameter], learning_rate: float, momentum: float, weight_decay: float
    ) -> None:
        """Update weights that all have the same shape."""
        directions = torch.stack([self._momentum(weight, momentum) for weight in weights])
        scale = 0.2 * max(weights[0].shape) ** 0.5
        for weight, direction in zip(weights, orthogonalised(directions), strict=True):
            weight.mul_(1 - learning_rate * weight_decay)
            weight.add_(direction, alpha=-learning_rate * scale)

    def _momentum(self, weight: nn.Parameter, momentum: float) -> Tensor:
        """Nesterov momentum: the gradient averaged once more with the moving average that it has just updated."""
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        average: Tensor = state["momentum"]
        average.lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(average, momentum)
