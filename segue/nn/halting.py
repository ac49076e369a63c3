"""Adaptive computation time (Graves 2016): each token decides for itself after how many steps it halts.

A halting unit gives every step n a probability p_n. While the sum of the probabilities is at most 1 - ε, the state s_n
after the step weighs p_n. The first step that would exceed it, or the last one allowed, weighs the remainder R:
    R = 1 - (sum of the earlier p),   y = Σ w_n s_n,   ponder cost = (steps taken) + R
A halted state stays as it is, and other tokens go on seeing it.

Letters: N steps at most, C width; … stands for the shape of the tokens.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segue.config import StepsConfig

EPSILON = 0.01
"""ε: a token halts when its probabilities add up to more than 1 - ε, so that a single step can suffice."""


class Pondering(NamedTuple):
    """How long each token was thought about."""

    steps: Tensor  # (…) steps taken, integers; 0 in padding
    remainder: Tensor  # (…) R; 0 in padding, and where nothing halts. It alone has a gradient.

    def transposed(self) -> "Pondering":
        """(B, T) of (T, B)"""
        return Pondering(self.steps.T, self.remainder.T)


def ponder_cost(*parts: Pondering) -> Tensor:
    """Steps and remainder, the mean over all real tokens."""
    total = torch.stack([(part.steps + part.remainder).sum() for part in parts]).sum()
    return total / torch.stack([(part.steps > 0).sum() for part in parts]).sum().clamp(min=1)


def halting_weights(probabilities: Tensor, epsilon: float = EPSILON) -> tuple[Tensor, Pondering]:
    """The textbook form: the weights (N, …) of N states, given the probabilities (N, …) of all steps."""
    number = torch.arange(len(probabilities)).view(-1, *[1] * (probabilities.dim() - 1))
    before = torch.cat([torch.zeros_like(probabilities[:1]), probabilities.cumsum(dim=0)[:-1]])
    exceeds = (before + probabilities > 1 - epsilon) | (number == len(probabilities) - 1)
    last = exceeds.int().argmax(dim=0)  # the first step that exceeds
    remainder = 1 - before.gather(0, last[None])[0]
    weights = torch.where(number < last, probabilities, torch.where(number == last, remainder, 0.0))
    return weights, Pondering(last + 1, remainder)


def listing_weights(probabilities: Tensor, epsilon: float = EPSILON) -> tuple[Tensor, Pondering]:
    """The same as the Universal Transformer's listing has it. The weights do not add up to 1.

    A step that weighs w shrinks the output so far by 1 - w, and at the last step allowed there is no remainder.
    """
    weights, pondering = halting_weights(probabilities, epsilon)
    before = probabilities[:-1].sum(dim=0)
    unhalted = (pondering.steps == len(probabilities)) & (before + probabilities[-1] <= 1 - epsilon)
    weights = torch.cat([weights[:-1], torch.where(unhalted, probabilities[-1], weights[-1])[None]])
    shrunk = torch.cat([(1 - weights).flip(0).cumprod(dim=0).flip(0)[1:], torch.ones_like(weights[:1])])
    return weights * shrunk, pondering._replace(remainder=torch.where(unhalted, 0.0, pondering.remainder))


@dataclass(frozen=True, eq=False)
class Thought:
    """Adaptive computation time between two steps."""

    state: Tensor  # (…, C)
    output: Tensor  # (…, C) the weighted states so far
    running: Tensor  # (…) whether a token has not halted yet
    spent: Tensor  # (…) the sum of its probabilities so far
    pondering: Pondering


def first_thought(hidden: Tensor, real: Tensor) -> Thought:
    """Before the first step. Tokens that are not real have halted: padding is not thought about."""
    exact = torch.promote_types(hidden.dtype, torch.float32)  # bfloat16 cannot tell 0.99 from 1
    nothing = torch.zeros(real.shape, dtype=exact, device=hidden.device)
    none = torch.zeros(real.shape, dtype=torch.int64, device=hidden.device)
    return Thought(hidden, torch.zeros_like(hidden), real, nothing, Pondering(none, nothing))


class Halting(nn.Module):
    """The halting unit, p = sigmoid(w x + b), and what follows from it for every token."""

    def __init__(self, config: StepsConfig) -> None:
        super().__init__()
        self.unit = nn.Linear(config.width, 1)
        self.halt_bias, self.listing = config.halt_bias, config.halting == "listing"

    def forward(self, thought: Thought, entered: Tensor, after: Tensor, *, last: bool) -> Thought:
        """One more step: what `entered` it (…, C) decides whether the state `after` it (…, C) is a token's last."""
        spent, running = thought.spent, thought.running
        chance = self.unit(entered)[..., 0].to(spent.dtype).sigmoid()
        exceeds = spent + chance > 1 - EPSILON
        halts = running & (exceeds if self.listing or not last else torch.ones_like(exceeds))
        weight = torch.where(halts, 1 - spent, chance) * running
        shrunk = thought.output * (1 - weight[..., None]) if self.listing else thought.output
        pondering = Pondering(
            thought.pondering.steps + running, torch.where(halts, 1 - spent, thought.pondering.remainder)
        )
        return replace(
            thought,
            state=torch.where(running[..., None], after, thought.state),
            output=shrunk + weight[..., None] * after,
            running=running & ~halts,
            spent=torch.where(running, spent + chance, spent),
            pondering=pondering,
        )


def initialise_halting(model: nn.Module) -> None:
    """Set the bias of every halting unit to the config's."""
    for part in model.modules():
        if isinstance(part, Halting):
            nn.init.constant_(part.unit.bias, part.halt_bias)
