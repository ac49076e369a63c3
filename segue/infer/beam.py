"""Beam search: keep the few best beginnings of a text, word by word, until the best whole one is certain.

A beginning that ends leaves the beam, which gets narrower by one; so a beam of one is greedy search. Scores are
log-probabilities divided by `((5 + length) / 6) ** penalty` (Wu et al.), the end counted. No model here: whoever calls
says how to go on. Letters: B sentences, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor


class Selectable(Protocol):
    """A memory whose lanes can be taken in any order, also several times."""

    def select(self, index: Sequence[int]) -> Self: ...


Memory = TypeVar("Memory", bound=Selectable)


@dataclass(frozen=True)
class Hypothesis:
    """A text found: its tokens without the end, how likely it is, and its score."""

    tokens: tuple[int, ...]
    logprob: float
    score: float
    whole: bool  # it came to its end; else the longest length did


@dataclass(frozen=True)
class _Beam:
    """What is kept of one sentence."""

    alive: list[tuple[tuple[int, ...], float]]  # tokens and log-probability, best first
    found: list[Hypothesis]


def length_penalty(length: int, penalty: float) -> float:
    return float(((5 + length) / 6) ** penalty)


def beam_search(
    read: Callable[[Tensor, Memory], tuple[Tensor, Memory]],
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

    `read` takes the newest token of each lane and the memory of all lanes, and gives the log-probabilities (lanes, V)
    of the next and the memory afterwards. It begins with one lane for each sentence.
    """
    beams = [_Beam([((), 0.0)], []) for _ in range(sentences)]
    newest = [start] * sentences
    for length in range(1, longest + 1):
        logprobs, memory = read(torch.tensor(newest), memory)
        chosen: list[int] = []  # the lane that each new lane goes on from
        first = 0
        for number, beam in enumerate(beams):
            lanes = slice(first, first + len(beam.alive))
            first = lanes.stop
            if beam.alive:
                beams[number], parents = _grown(beam, logprobs[lanes], length, beam_width, end, penalty)
                if length == longest or _certain(beam, best, longest, penalty):
                    beams[number] = _closed(beams[number], length, penalty, truncated=length == longest)
                else:
                    chosen += [lanes.start + parent for parent in parents]
        if not chosen:
            break
        newest = [tokens[-1] for beam in beams for tokens, _ in beam.alive]
        memory = memory.select(chosen)
    return [sorted(beam.found, key=lambda one: -one.score)[:best] for beam in beams]


def _grown(
    beam: _Beam, logprobs: Tensor, length: int, beam_width: int, end: int, penalty: float
) -> tuple[_Beam, list[int]]:
    """The best ways to go on, as many as are not found yet; those that end are found now."""
    before = torch.tensor([logprob for _, logprob in beam.alive], dtype=torch.float64)
    candidates = before[:, None] + logprobs.double().cpu()
    count = min(beam_width - len(beam.found), candidates.numel())
    values, places = candidates.flatten().topk(count)
    alive, found, parents = [], list(beam.found), []
    for logprob, place in zip(values.tolist(), places.tolist(), strict=True):
        parent, token = divmod(place, candidates.size(1))
        tokens = beam.alive[parent][0]
        if token == end:
            found.append(Hypothesis(tokens, logprob, logprob / length_penalty(length, penalty), whole=True))
        else:
            alive.append(((*tokens, token), logprob))
            parents.append(parent)
    return _Beam(alive, found), parents


def _certain(beam: _Beam, best: int, longest: int, penalty: float) -> bool:
    """Whether nothing still alive can come among the best: log-probabilities only fall, so the longest text with the
    present one is the best that may become of it.
    """
    if not beam.alive or len(beam.found) < best:
        return not beam.alive
    worst = sorted((one.score for one in beam.found), reverse=True)[best - 1]
    return worst >= beam.alive[0][1] / length_penalty(longest, penalty)


def _closed(beam: _Beam, length: int, penalty: float, *, truncated: bool) -> _Beam:
    """Nothing goes on; what is cut off at the longest length counts as it stands."""
    if not truncated:
        return _Beam([], beam.found)
    score = length_penalty(length, penalty)
    cut = [Hypothesis(tokens, logprob, logprob / score, whole=False) for tokens, logprob in beam.alive]
    return _Beam([], beam.found + cut)
