"""Counts of n-grams: as if each had been counted by hand, on a ring, for all places at once."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.errors import InputError
from segue.text.ngram_counts import count_ngrams

VOCAB = 4
texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)


def by_hand(text: list[int], length: int) -> Counter[tuple[int, ...]]:
    ring = text * (length + 1)
    return Counter(tuple(ring[place : place + length]) for place in range(len(text)))


@given(text=texts, asked=texts, data=st.data())
def test_every_count_is_that_of_counting_by_hand(
    text: list[int], asked: list[int], data: st.DataObject
) -> None:
    order, before = data.draw(st.integers(1, min(5, len(text)))), data.draw(st.integers(0, len(asked) - 1))
    found = count_ngrams(np.array(text, np.uint8), VOCAB, order).lookup(np.array(asked, np.uint8), before)
    assert found.targets.shape == (len(asked) - before, order)
    for column in range(order):
        contexts, ngrams = by_hand(text, column), by_hand(text, column + 1)
        for row, place in enumerate(range(before, len(asked))):
            known = place >= column  # else the context begins before the text that is looked up
            ngram = tuple(asked[place - column : place + 1]) if known else ()
            assert found.contexts[row, column] == (contexts[ngram[:-1]] if known else 0)
            assert found.targets[row, column] == (ngrams[ngram] if known else 0)
            followers = {one for one in ngrams if known and one[:-1] == ngram[:-1]}
            assert found.continuations[row, column] == len(followers)


@given(text=texts, context=texts)
def test_the_counts_of_all_continuations_add_up_to_the_context(text: list[int], context: list[int]) -> None:
    counts = count_ngrams(np.array(text, np.uint16), VOCAB, min(3, len(text)))
    found = [counts.lookup(np.array([*context, token], np.uint16), len(context)) for token in range(VOCAB)]
    together = sum(one.targets for one in found)
    assert (together == found[0].contexts).all()


def test_a_large_vocabulary_does_not_overflow() -> None:
    ids = np.array([2**31, 7, 2**31, 7, 9], np.uint32)
    found = count_ngrams(ids, 2**32, 3).lookup(ids, 3)
    assert found.targets.tolist() == [[2, 2, 1], [1, 1, 1]]


def test_an_order_needs_as_many_tokens() -> None:
    with pytest.raises(InputError, match="order 4 of a text of 3 tokens"):
        count_ngrams(np.zeros(3, np.uint8), 2, 4)
