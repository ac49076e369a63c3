"""Adaptation at test time: dynamic evaluation (the weights are trained on the text) and the neural cache.

Letters: T tokens in the segment, N states in the cache, C width.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from segue.config import Reading, Settings
from segue.infer.evaluate import Score, evaluate, scored, segments, targets_of
from segue.nn.engine import Engine
from segue.nn.language import LanguageModel
from segue.nn.memory import Memory
from segue.progress import Report, silent
from segue.text.corpus import Stream
from segue.text.lanes import Segment


class Dynamic(Settings):
    """Dynamic evaluation in its RMS form."""

    learning_rate: NonNegativeFloat = 1e-4  # η
    decay: NonNegativeFloat = 1e-3  # λ, pulls back to the trained weights
    epsilon: PositiveFloat = 1e-4
    gather: PositiveInt = 200_000  # tokens of training text to estimate the gradients' mean squares from


class Cache(Settings):
    """The neural cache."""

    size: PositiveInt = 2000  # states remembered
    weight: float = Field(0.1, ge=0, lt=1)  # λ
    flatness: PositiveFloat = 0.3  # θ


def trained_weights(model: LanguageModel) -> list[tuple[str, nn.Parameter]]:
    """All weights but those that are never trained."""
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def mean_squares(
    model: LanguageModel, stream: Stream, reading: Reading, tokens: int, report: Report = silent
) -> dict[str, Tensor]:
    """The mean square of each weight's gradient over the segments of training text."""
    total = targets_of(stream, tokens)
    squares = {name: torch.zeros_like(weight) for name, weight in trained_weights(model)}
    memory: Memory = model.start(reach=reading.reach)
    count = 0
    for segment in segments(stream, reading, total):
        memory = _gradients(model, segment, memory)[1]
        for name, weight in trained_weights(model):
            assert weight.grad is not None
            squares[name].addcmul_(weight.grad, weight.grad)
        count += 1
        report("gathering gradients", min(total, count * reading.segment), total)
    return {name: square / count for name, square in squares.items()}


def evaluate_dynamic(
    model: LanguageModel,
    stream: Stream,
    reading: Reading,
    squares: Mapping[str, Tensor],
    dynamic: Dynamic,
    *,
    lessons: Stream | None = None,
    limit: int | None = None,
    report: Report = silent,
) -> Score:
    """Score each segment, then train on it. The weights are restored afterwards. Learning rate 0 is static evaluation.

    θ ← θ − η g / (sqrt(MS) + ε) + λ (θ0 − θ) ⊙ RMSnorm. Weights move, so memory is hidden states.
    A rate too high ends with nats that are not finite. With `lessons`, a text as long, its segments are trained on
    instead: what further training is worth without adaptation.
    """
    if dynamic.learning_rate == 0:
        return evaluate(model, stream, reading, limit=limit, report=report)
    trained = {name: weight.detach().clone() for name, weight in trained_weights(model)}
    sizes = {name: square.sqrt() for name, square in squares.items()}
    mean = float(sum(size.sum() for size in sizes.values()) / sum(size.numel() for size in sizes.values()))
    pulls = {name: (dynamic.decay * size / mean).clamp(max=1) for name, size in sizes.items()}
    total = targets_of(stream, limit)
    memory: Memory = model.start(reach=reading.reach)
    others = iter(()) if lessons is None else segments(lessons, reading, targets_of(lessons, total))
    other_memory: Memory = model.start(reach=reading.reach)
    nats, done = 0.0, 0
    try:
        for segment in segments(stream, reading, total):
            surprise, memory = _gradients(model, segment, memory)
            nats, done = nats + surprise, done + segment.targets.numel()
            if not math.isfinite(nats):  # diverged; weights that are not finite do not recover
                break
            if lessons is not None:
                _, other_memory = _gradients(model, next(others), other_memory)
            with torch.no_grad():
                for name, weight in trained_weights(model):
                    assert weight.grad is not None
                    step = dynamic.learning_rate * weight.grad / (sizes[name] + dynamic.epsilon)
                    weight.add_(pulls[name] * (trained[name] - weight) - step)
            report("evaluating", done, total)
    finally:
        with torch.no_grad():
            for name, weight in trained_weights(model):
                weight.copy_(trained[name])
                weight.grad = None
    return scored(stream, nats, total)


def _gradients(model: LanguageModel, segment: Segment, memory: Memory) -> tuple[float, Memory]:
    """The summed cross-entropy of a segment, in nats; the gradient of the mean is left in the weights."""
    device = memory.device
    model.zero_grad()
    hidden, memory = model(segment.tokens.to(device, non_blocking=True), memory, starts=segment.starts)
    nats = model.nats(hidden, segment.targets.to(device, non_blocking=True))
    nats.mean().backward()
    return nats.double().sum().item(), memory


def evaluate_cached(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    cache: Cache,
    *,
    limit: int | None = None,
    report: Report = silent,
) -> Score:
    """P = (1 - λ) p_model + λ p_cache; the cache predicts tokens that followed hidden states like the present one."""
    return evaluate_caches(model, stream, reading, [cache], limit=limit, report=report)[0]


@torch.no_grad()
def evaluate_caches(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    caches: Sequence[Cache],
    *,
    limit: int | None = None,
    report: Report = silent,
) -> list[Score]:
    """The score with each of several caches, in one pass of the model. Weight 0 is no cache."""
    total, size = targets_of(stream, limit), max(cache.size for cache in caches)
    engine = model.frozen()
    memory: Memory = engine.start(reach=reading.reach)
    device = engine.device
    states = torch.zeros(0, model.config.width, device=device, dtype=memory.dtype)
    followers = torch.zeros(0, dtype=torch.int64, device=device)
    nats, done = [0.0] * len(caches), 0
    for segment in segments(stream, reading, total):
        hidden, memory = engine(segment.tokens.to(device, non_blocking=True), memory, starts=segment.starts)
        targets = segment.targets.to(device, non_blocking=True)
        states, followers = torch.cat([states, hidden[0]]), torch.cat([followers, targets[0]])
        own = -engine.nats(hidden, targets)[0]
        for number, cache in enumerate(caches):
            mixed = _mixed(own, cache_logprobs(states, followers, len(own), cache), cache)
            if done == 0:  # the cache is still empty
                mixed[0] = own[0]
            nats[number] -= mixed.double().sum().item()
        done += len(own)
        states, followers = states[-size:], followers[-size:]
        report("evaluating", done, total)
    return [scored(stream, one, total) for one in nats]


def _mixed(own: Tensor, recent: Tensor, cache: Cache) -> Tensor:
    """(T,) Log-probabilities of the model and of the cache, mixed by the cache's weight."""
    weight = own.new_tensor(cache.weight)
    return torch.logaddexp(own + torch.log1p(-weight), recent + weight.log())


def cache_logprobs(states: Tensor, followers: Tensor, newest: int, cache: Cache) -> Tensor:
    """(T,) The cache's log-probability of the token that followed each of the `newest` states.

    Each sees the `size` states of (…, C) before it, whose followers (…,) are known by then.
    """
    older = len(states) - newest
    likeness = cache.flatness * states[older:] @ states.T
    places = torch.arange(len(states), device=states.device)
    back = places[older:, None] - places
    likeness = likeness.masked_fill((back < 1) | (back > cache.size), float("-inf"))
    same = followers == followers[older:, None]
    together = likeness.logsumexp(dim=1)
    right = likeness.masked_fill(~same, float("-inf")).logsumexp(dim=1)
    return (right - together).nan_to_num(nan=float("-inf"), neginf=float("-inf"))
