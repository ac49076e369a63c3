"""How much context models use, from their losses by context length; how sure that is, by bootstrap over text.

Two definitions. The paper's RECL (`segue.infer.recl`) takes at every position the smaller of two losses: that of the
group's best model before, and the model's own with more context. A minimum of two noisy numbers is smaller than both on
average, so a loss that only fluctuates gains too. The second definition takes means alone, over positions that are
chosen once: fluctuations cancel. Letters: P positions, L context lengths.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from segue.infer.recl import GAIN, effective_length

CONFIDENCE = 0.95

DEFINITIONS = {"paper": "RECL as published", "mean": "by mean gains"}
"""The two definitions of a length, and what the page calls them."""

Losses = Mapping[str, Tensor]
"""(L, P) Nats by context length and position, of each model."""


class Estimate(NamedTuple):
    """A value, and its interval of `CONFIDENCE` over resampled texts."""

    low: float
    value: float
    high: float


def paper_length(
    losses: Losses, group: Sequence[str], name: str, share: float, contexts: Sequence[int]
) -> int:
    """The paper's RECL of a model, against the best of the group at each position."""
    place = {context: number for number, context in enumerate(contexts)}

    @cache
    def of(other: str, context: int) -> Tensor:
        return losses[other][place[context]]

    return effective_length(of, list(group), name, share, contexts)


def paper_gains(losses: Losses, group: Sequence[str], name: str, share: float) -> list[float]:
    """The paper's gain of every step of the ladder: the fall in perplexity, against the best of the group."""
    best = torch.stack([losses[other] for other in group]).amin(dim=0)
    gains = []
    for place in range(len(best) - 1):
        hardest = best[place].topk(_count(share, best)).indices
        before, after = (
            torch.minimum(best[place], losses[name][at])[hardest].mean() for at in (place, place + 1)
        )
        gains.append(float(1 - (after - before).exp()))
    return gains


def hard_positions(losses: Losses, group: Sequence[str], share: float) -> Tensor:
    """The share of positions that are hardest for the group with the shortest context: one choice for all lengths."""
    best = torch.stack([losses[other][0] for other in group]).amin(dim=0)
    return best.topk(_count(share, best)).indices


def _count(share: float, best: Tensor) -> int:
    return max(1, round(share * best.size(-1)))


def mean_length(nats: Tensor, contexts: Sequence[int]) -> int:
    """The shortest context length from which no longer one lowers perplexity by 1 %, given mean nats (L,)."""
    for place, context in enumerate(contexts):
        if float(1 - (nats[place:].min() - nats[place]).exp()) < GAIN:
            return context
    return contexts[-1]


def resampled(blocks: int, size: int, count: int, seed: int) -> Tensor:
    """(count, P) Positions of texts that are made of the same blocks, drawn with repetition."""
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(blocks, (count, blocks), generator=draw)
    return (chosen[..., None] * size + torch.arange(size)).flatten(1)


def estimate(value: float, others: Sequence[float]) -> Estimate:
    """A value with the interval that holds the middle 95 % of the resampled ones."""
    tail = (1 - CONFIDENCE) / 2
    spread = torch.tensor(others, dtype=torch.float64)
    low, high = (float(spread.quantile(at, interpolation="nearest")) for at in (tail, 1 - tail))
    return Estimate(low, value, high)
