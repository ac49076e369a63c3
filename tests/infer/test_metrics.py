"""Metrics say what scikit-learn, SciPy, seqeval and SQuAD's script say; their words were recorded by record.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.infer import metrics

CASES: dict[str, list[Any]] = json.loads(
    (Path(__file__).parents[1] / "reference" / "metrics" / "cases.json").read_text()
)


@pytest.mark.parametrize("case", CASES["labels"], ids=lambda case: str(len(case[0])))
def test_labels_are_counted_as_by_scikit_learn(case: list[Any]) -> None:
    ours, theirs, accuracy, macro_f1, table = case
    assert metrics.accuracy(ours, theirs) == pytest.approx(accuracy)
    assert metrics.macro_f1(ours, theirs) == pytest.approx(macro_f1)
    assert metrics.confusion(ours, theirs, "abcd") == table


@pytest.mark.parametrize("case", CASES["scores"], ids=lambda case: str(len(case[0])))
def test_correlations_are_scipys(case: list[Any]) -> None:
    ours, theirs, pearson, spearman = case
    assert metrics.pearson(ours, theirs) == pytest.approx(pearson)
    assert metrics.spearman(ours, theirs) == pytest.approx(spearman)


def test_a_constant_has_no_correlation() -> None:
    assert metrics.pearson([1.0, 1.0], [1.0, 2.0]) == metrics.spearman([3.0], [2.0]) == 0.0


@pytest.mark.parametrize("case", CASES["tags"], ids=lambda case: f"{case[2][2]:.3f}")
def test_entities_are_seqevals(case: list[Any]) -> None:
    ours, theirs, figures, found = case
    assert [[list(one) for one in metrics.entities(sentence)] for sentence in ours] == found
    assert list(metrics.entity_scores(ours, theirs)) == pytest.approx(figures)


@pytest.mark.parametrize("case", CASES["answers"], ids=lambda case: case[0].strip() or "none")
def test_answers_are_judged_as_by_squad(case: list[Any]) -> None:
    answer, wanted, exact, f1 = case
    assert metrics.exact_match(answer, wanted) == exact
    assert metrics.answer_f1(answer, wanted) == pytest.approx(f1)


TAGS = st.lists(st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"]), max_size=12)


@given(tags=TAGS)
def test_entities_do_not_overlap_and_hold_every_word_that_is_inside(tags: list[str]) -> None:
    found = metrics.entities(tags)
    words = [word for one in found for word in range(one.first, one.last + 1)]
    assert words == [place for place, tag in enumerate(tags) if tag != "O"]
    assert all(tags[one.first].endswith(one.kind) for one in found)
    assert metrics.entity_scores([tags], [tags]).f1 == float(bool(found))


def test_parts_of_speech_are_no_entities() -> None:
    assert metrics.are_entities(["O", "B-x", "I-x"])
    assert not metrics.are_entities(["DET", "NOUN"])
    assert not metrics.are_entities(["O", "NOUN"])
