"""Beam search: keep the best partial texts, token by token, until the best complete one is certain.

A text that ends leaves the beam, which gets narrower by one; so beam width 1 is greedy search. Scores are
log-probabilities divided by `((5 + length) / 6) ** penalty` (Wu et al.), the end counted. No model here: the
caller gives a function that reads on. Letters: B sentences, K tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor


class Selectable(Protocol):
    """A memory whose lanes can be selected in any order, also several times."""

    def select(self, index: Sequence[int]) -> Self: ...


Memory = TypeVar("Memory", bound=Selectable)

Continuations = list[tuple[float, float]]
"""Log-probabilities and tokens that may follow a text."""


@dataclass(frozen=True)
class Hypothesis:
    """A text: its tokens without the end symbol, its log-probability and its score."""

    tokens: tuple[int, ...]
    logprob: float
    score: float
    whole: bool  # it has an end symbol; if not, it was cut at the longest length


@dataclass(frozen=True)
class _Beam:
    """The beam of one sentence."""

    alive: list[tuple[tuple[int, ...], float]]  # tokens and log-probability, best first
    finished: list[Hypothesis]


def length_penalty(length: int, penalty: float) -> float:
    return float(((5 + length) / 6) ** penalty)


def beam_search(
    read: Callable[[Tensor, Memory], tuple[Tensor, Tensor, Memory]],
    memory: Memory,
    sentences: int,
    *,
    start: int,
    end: int,
    beam_width: int = 4,
    longest: int = 100,
    penalty: float = 0.6,
    best: int = 1,
) -> list[list[Hypothesis]]:
    """For each of B sentences, its `best` hypotheses, the best first.

    `read` takes the newest token of each lane and the memory of all lanes. It returns the largest log-probabilities
    of the next token (lanes, K), their tokens, and the new memory. K is at least the beam width, or the vocabulary: no
    lane can have more of the best. It starts with one lane for each sentence.
    """
    beams = [_Beam([((), 0.0)], []) for _ in range(sentences)]
    newest = [start] * sentences
    for length in range(1, longest + 1):
        *likeliest, memory = read(torch.tensor(newest), memory)
        values, tokens = torch.stack(
            [one.double() for one in likeliest]
        ).tolist()  # the one wait for a GPU in each step
        chosen: list[int] = []  # the lane that each new lane continues
        first = 0
        for number, beam in enumerate(beams):
            lanes = slice(first, first + len(beam.alive))
            first = lanes.stop
            if beam.alive:
                some = [
                    list(zip(*both, strict=True)) for both in zip(values[lanes], tokens[lanes], strict=True)
                ]
                beams[number], parents = _grown(beam, some, length, beam_width, end, penalty)
                if length == longest or _certain(beam, best, longest, penalty):
                    beams[number] = _closed(beams[number], length, penalty, truncated=length == longest)
                else:
                    chosen += [lanes.start + parent for parent in parents]
        if not chosen:
            break
        newest = [text[-1] for beam in beams for text, _ in beam.alive]
        if chosen != list(range(first)):  # greedy search goes on in the same lanes until a text ends
            memory = memory.select(chosen)
    return [sorted(beam.finished, key=lambda one: -one.score)[:best] for beam in beams]


def _grown(
    beam: _Beam, likeliest: list[Continuations], length: int, beam_width: int, end: int, penalty: float
) -> tuple[_Beam, list[int]]:
    """The best continuations, one for each free place of the beam; texts that end are finished.

    `likeliest` are those of each text.
    """
    candidates = [
        (before + logprob, parent, int(token))
        for parent, ((_, before), some) in enumerate(zip(beam.alive, likeliest, strict=True))
        for logprob, token in some
        if logprob != -math.inf  # a beam wider than the vocabulary would keep what is never allowed
    ]
    candidates.sort(key=lambda one: -one[0])
    alive, finished, parents = [], list(beam.finished), []
    for logprob, parent, token in candidates[: beam_width - len(beam.finished)]:
        text = beam.alive[parent][0]
        if token == end:
            finished.append(Hypothesis(text, logprob, logprob / length_penalty(length, penalty), whole=True))
        else:
            alive.append(((*text, token), logprob))
            parents.append(parent)
    return _Beam(alive, finished), parents


def _certain(beam: _Beam, best: int, longest: int, penalty: float) -> bool:
    """Whether no unfinished text can still come among the best. Log-probabilities only fall, so its highest possible
    score is its present log-probability at the longest length.
    """
    if not beam.alive or len(beam.finished) < best:
        return not beam.alive
    worst = sorted((one.score for one in beam.finished), reverse=True)[best - 1]
    return worst >= beam.alive[0][1] / length_penalty(longest, penalty)


def _closed(beam: _Beam, length: int, penalty: float, *, truncated: bool) -> _Beam:
    """End the search; texts that are cut at the longest length count as they are."""
    if not truncated:
        return _Beam([], beam.finished)
    score = length_penalty(length, penalty)
    cut = [Hypothesis(tokens, logprob, logprob / score, whole=False) for tokens, logprob in beam.alive]
    return _Beam([], beam.finished + cut)
