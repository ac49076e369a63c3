"""Choosing the next token. Pure functions of log-probabilities; V is the vocabulary, B lanes."""

from collections.abc import Sequence

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from segue.config import Settings
from segue.errors import InputError


class Sampling(Settings):
    """How tokens are chosen. Temperature 0 is greedy; top_k 0 and top_p 1 leave all tokens in."""

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    top_k: NonNegativeInt = 0
    top_p: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)


def choose(logprobs: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """(B,) One token for each lane, from log-probabilities (B, V)."""
    if sampling.temperature == 0:
        return logprobs.argmax(dim=-1)
    # subtract the maximum, so that even a very low temperature leaves the likeliest token
    likelihood = logprobs.double() - logprobs.double().amax(dim=-1, keepdim=True)
    kept = narrowed(likelihood / sampling.temperature, sampling)
    chances = kept.softmax(dim=-1)
    if not chances.is_cpu:
        return race(chances, generator)
    try:
        return torch.multinomial(chances, 1, generator=generator).squeeze(1)
    except RuntimeError as error:  # raised by the CPU's draw itself, at no cost
        raise InputError(
            f"the model's probabilities are no numbers ({error}); are its weights whole?"
        ) from None


def race(chances: Tensor, generator: torch.Generator) -> Tensor:
    """(B,) A draw from probabilities (B, V): the first of V exponential clocks whose rates they are.

    It draws what `torch.multinomial` draws, which on a GPU waits to check the probabilities first.
    """
    clocks = torch.empty_like(chances).exponential_(generator=generator)
    return (chances / clocks).argmax(dim=-1)


def choose_each(logprobs: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> Tensor:
    """(B,) As `choose`, with a generator for each lane, so that a lane draws what it would draw alone."""
    lanes = zip(logprobs.split(1), generators, strict=True)
    return torch.cat([choose(lane, sampling, generator) for lane, generator in lanes])


def narrowed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits with only the `top_k` likeliest tokens, and of those the ones within `top_p` of the probability.

    The likeliest token always stays.
    """
    if sampling.top_k and sampling.top_k < logits.size(-1):
        least = logits.topk(sampling.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if sampling.top_p < 1:
        ordered, places = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        beyond = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, places, before >= sampling.top_p)
        logits = logits.masked_fill(beyond, float("-inf"))
    return logits
