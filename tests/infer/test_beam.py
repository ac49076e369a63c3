"""Beam search against searching everything, and against greedy search."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segue.infer import beam as beam_room
from segue.infer.beam import Hypothesis, beam_search, length_penalty

START, END, VOCAB, LONGEST = 0, 1, 4, 4


class Texts:
    """A memory that is the text itself, and a model that is a table of random distributions, one for each text."""

    def __init__(self, texts: list[tuple[int, ...]]) -> None:
        self.texts = texts

    def select(self, index: list[int]) -> "Texts":
        return Texts([self.texts[lane] for lane in index])


def table(seed: int) -> dict[tuple[int, ...], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    prefixes = [text for size in range(LONGEST + 1) for text in itertools.product(range(VOCAB), repeat=size)]
    return {
        text: (3 * torch.randn(VOCAB, dtype=torch.float64, generator=generator)).log_softmax(0)
        for text in prefixes
    }


def search(seeds: list[int], **settings: Any) -> list[list[Hypothesis]]:
    tables = {number: table(seed) for number, seed in enumerate(seeds)}

    def read(newest: Tensor, memory: Texts) -> tuple[Tensor, Tensor, Texts]:
        texts = [(*text, token) for text, token in zip(memory.texts, newest.tolist(), strict=True)]
        # A text begins with its sentence's number and the start token.
        logprobs = torch.stack([tables[text[0]][text[2:]] for text in texts])
        return *logprobs.topk(min(VOCAB, settings.get("beam_width", VOCAB))), Texts(texts)

    memory = Texts([(number,) for number in tables])
    return beam_search(read, memory, len(seeds), start=START, end=END, longest=LONGEST, **settings)


def everything(seed: int, penalty: float) -> list[Hypothesis]:
    """Every text that ends, and every one that is cut off."""
    model, found = table(seed), []

    def walk(text: tuple[int, ...], logprob: float) -> None:
        for token in range(VOCAB):
            reached = logprob + float(model[text][token])
            score = reached / length_penalty(len(text) + 1, penalty)
            if token == END:
                found.append(Hypothesis(text, reached, score, whole=True))
            elif len(text) + 1 == LONGEST:
                found.append(Hypothesis((*text, token), reached, score, whole=False))
            else:
                walk((*text, token), reached)

    walk((), 0.0)
    return sorted(found, key=lambda one: -one.score)


def tokens_of(found: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [one.tokens for one in found]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=3), st.floats(0, 2), st.integers(1, 5))
def test_a_wide_beam_finds_what_searching_everything_finds(
    seeds: list[int], penalty: float, best: int
) -> None:
    found = search(seeds, beam_width=10_000, penalty=penalty, best=best)
    for seed, ours in zip(seeds, found, strict=True):
        wanted = everything(seed, penalty)[:best]
        assert tokens_of(ours) == tokens_of(wanted)
        assert [one.score for one in ours] == pytest.approx([one.score for one in wanted])


@given(st.integers(0, 999), st.floats(0, 2))
def test_a_beam_of_one_is_greedy(seed: int, penalty: float) -> None:
    model, text = table(seed), ()
    while len(text) < LONGEST:
        token = int(model[text].argmax())
        if token == END:
            break
        text = (*text, token)
    assert search([seed], beam_width=1, penalty=penalty)[0][0].tokens == text


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.integers(1, 6), st.floats(0, 2))
def test_stopping_early_changes_nothing(seeds: list[int], beam_width: int, penalty: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_room, "_certain", lambda beam, *_: not beam.alive)
        patient = search(seeds, beam_width=beam_width, penalty=penalty)
    assert search(seeds, beam_width=beam_width, penalty=penalty) == patient


@given(st.lists(st.integers(0, 99), min_size=2, max_size=4), st.integers(1, 6))
def test_sentences_do_not_see_each_other(seeds: list[int], beam_width: int) -> None:
    together = search(seeds, beam_width=beam_width)
    assert together == [search([seed], beam_width=beam_width)[0] for seed in seeds]


def test_a_beam_wider_than_the_vocabulary_holds_nothing_impossible() -> None:
    class Nothing:
        def select(self, index: Sequence[int]) -> "Nothing":  # noqa: ARG002
            return self

    def read(newest: Tensor, memory: Nothing) -> tuple[Tensor, Tensor, Nothing]:
        logprobs = torch.tensor([[0.5, 0.5, 0.0]]).log()  # the token 2 is never allowed
        return logprobs.expand(len(newest), -1), torch.tensor([[0, 1, 2]]).expand(len(newest), -1), memory

    (texts,) = beam_search(read, Nothing(), 1, start=2, end=1, beam_width=9, longest=2, best=9)
    assert {one.tokens for one in texts} == {(), (0,), (0, 0)}
