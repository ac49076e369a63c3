"""n-grams mixed into a model's predictions: a probability distribution, fitted on what was not counted."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.config import Reach, Reading
from segue.errors import InputError, SegueError
from segue.infer.evaluate import evaluate, surprises, surprises_by_place
from segue.infer.ngram_mixture import Gate, Mixture, evaluate_mixed, look_up
from segue.progress import silent
from segue.text.corpus import Corpus, open_corpus
from segue.text.ngram_counts import count_ngrams
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import Piece, Source
from support import build, shape

READING = Reading(segment=8, reach=Reach(memory=8))
QUICK = {"steps": 60, "batch": 128, "width": 8}


def pieces(text: bytes) -> Iterator[Piece]:
    return iter([Piece(text, begins=True)])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Words of a small language in a random order: what follows within a word can be counted."""
    draw = np.random.default_rng(0)
    texts = {
        split: " ".join(draw.choice(["segment", "memory", "attention", "state"], size)).encode()
        for split, size in {"train": 600, "valid": 150, "test": 60}.items()
    }
    parts = {split: partial(pieces, text) for split, text in texts.items()}
    folder = tmp_path_factory.mktemp("ngrams") / "data"
    prepare(Source("words", parts), folder, PrepareConfig(tokenizer="bytes"), silent)
    return open_corpus(folder)


@given(
    text=st.lists(st.integers(0, 4), min_size=4, max_size=30),
    context=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    order=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_the_mixture_is_a_distribution(text: list[int], context: list[int], order: int, seed: int) -> None:
    torch.manual_seed(seed)
    gate, counts = Gate(order, width=5), count_ngrams(np.array(text, np.uint8), 5, order)
    model = torch.randn(5, dtype=torch.float64).log_softmax(dim=0)
    ids = [np.array([*context, token], np.uint8) for token in range(5)]
    nats = [
        gate(look_up(counts, one, len(context), len(one)), -model[[token]]) for token, one in enumerate(ids)
    ]
    assert torch.cat(nats).neg().exp().sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("lanes", "total", "segment"), [(1, 60, 7), (3, 61, 7), (5, 100, 4), (4, 3, 8)])
def test_surprises_lie_where_their_targets_do(corpus: Corpus, lanes: int, total: int, segment: int) -> None:
    model, stream = build(shape(vocab=256)), corpus.stream("test")
    reading = Reading(segment=segment, reach=Reach(memory=4))
    in_order = torch.cat(list(surprises(model, stream, reading, total)))
    by_place = surprises_by_place(model, stream, reading, total, lanes=lanes)
    torch.testing.assert_close(by_place, in_order, rtol=1e-5, atol=1e-5)


def test_an_untrained_model_gains_what_was_counted(corpus: Corpus) -> None:
    model = build(shape(vocab=256, width=8, layers=1, heads=1))
    before = torch.get_rng_state()
    mixed = evaluate_mixed(model, corpus, "test", READING, Mixture(order=3, **QUICK))
    assert torch.equal(torch.get_rng_state(), before)
    alone = evaluate(model, corpus.stream("test"), READING)
    assert mixed.alone.nats == pytest.approx(alone.nats)
    assert (mixed.tokens, mixed.bytes) == (alone.tokens, alone.bytes)
    assert alone.bits_per_byte > 7
    # a word of four, at random, has two bits: in some seven letters and a space
    assert 2 / 8 < mixed.bits_per_byte < 1.5
    assert 0 < mixed.share < 0.5
    again = evaluate_mixed(model, corpus, "test", READING, Mixture(order=3, lanes=3, **QUICK))
    assert again.nats == pytest.approx(mixed.nats, rel=1e-6)


def test_a_longer_order_reads_more_of_a_word(corpus: Corpus) -> None:
    model = build(shape(vocab=256, width=8, layers=1, heads=1))
    bits = [
        evaluate_mixed(model, corpus, "test", READING, Mixture(order=order, **QUICK), limit=200).bits_per_byte
        for order in (1, 2, 4)
    ]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] - bits[-1] > 1


@pytest.mark.parametrize("split", ["train", "valid"])
def test_what_was_counted_or_fitted_is_not_scored(corpus: Corpus, split: str) -> None:
    with pytest.raises(InputError, match="better than it is"):
        evaluate_mixed(build(shape(vocab=256)), corpus, split, READING, Mixture())


@pytest.mark.parametrize("wrong", [{"order": 0}, {"order": 17}, {"steps": 0}, {"learning_rate": math.inf}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(SegueError):
        Mixture(**wrong)


def test_what_is_wrong_is_said_before_anything_is_counted(corpus: Corpus) -> None:
    def never(task: str, done: int, total: int) -> None:
        raise AssertionError(f"{task} began")

    for limit in (0, -1):
        with pytest.raises(InputError, match="at least 1 token"):
            evaluate_mixed(
                build(shape(vocab=256)), corpus, "test", READING, Mixture(order=2), limit=limit, report=never
            )
