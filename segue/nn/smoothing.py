"""Label smoothing as published: 1 - ε on the right token, ε / (V - 1) on each of the others.

Letters: R rows, V vocabulary.
"""

import torch
from torch import Tensor


def smoothed_nats(logprobs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """(R,) The cross-entropy of log-probabilities (R, V) against smoothed targets (R,).

    Torch's own spreads ε over all V tokens, the right one included: another formula.
    """
    right = logprobs.gather(-1, targets[..., None]).squeeze(-1)
    if not smoothing:
        return -right
    others = logprobs.sum(dim=-1) - right
    return -(1 - smoothing) * right - smoothing / (logprobs.size(-1) - 1) * others


def least_nats(smoothing: float, vocabulary: int) -> float:
    """The least possible cross-entropy: the entropy of the smoothed target."""
    spread = torch.tensor([1 - smoothing, smoothing / (vocabulary - 1)], dtype=torch.float64)
    return float(-(torch.special.xlogy(spread, spread) * torch.tensor([1, vocabulary - 1])).sum())
