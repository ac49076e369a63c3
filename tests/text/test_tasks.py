"""Tasks without data: answers are right, splits never meet, and the same seed gives the same pairs."""

import itertools
import random
from datetime import date

import pytest

from segue.errors import InputError
from segue.text.tasks import FORMS, MONTHS, SIZED, WEEKDAYS, task, written


def test_every_language_has_its_months_and_weekdays() -> None:
    assert all(len(names.split()) == 12 for names in MONTHS.values())
    assert all(len(names.split()) == 7 for names in WEEKDAYS.values())
    assert set(FORMS) - {"figures"} == set(MONTHS) == set(WEEKDAYS)


def test_a_date_says_itself() -> None:
    day, draw = date(1987, 3, 14), random.Random(0)
    formats = {written(day, draw).lower() for _ in range(3000)}
    wanted = {
        "14. märz 1987",
        "march 14, 1987",
        "the 14th of march, 1987",
        "14.iii.1987",
        "3/14/1987",
        "19870314",
    }
    assert wanted <= formats
    assert "samedi 14 mars 1987" in formats  # it was one


def test_no_text_has_two_answers_and_no_answer_two_splits() -> None:
    parts = {name: list(pairs()) for name, pairs in task("dates", 4000).items()}
    assert {name: len(pairs) for name, pairs in parts.items()} == {"train": 4000, "valid": 200, "test": 200}
    answers: dict[bytes, bytes] = {}
    for pairs in parts.values():
        for text, answer in pairs:
            assert answers.setdefault(text, answer) == answer
    seen = [{answer for _, answer in pairs} for pairs in parts.values()]
    assert not any(one & other for one, other in itertools.combinations(seen, 2))


def test_copying_and_reversing() -> None:
    assert all(text == answer for text, answer in task("copy", 50)["train"]())
    assert all(text[::-1] == answer for text, answer in task("reverse", 50)["train"]())
    assert list(task("copy", 50, seed=1)["train"]()) == list(task("copy", 50, seed=1)["train"]())
    assert list(task("copy", 50, seed=1)["train"]()) != list(task("copy", 50, seed=2)["train"]())


def test_parity_after_every_bit_and_sums_by_columns() -> None:
    for bits, answer in task("parity", 50)["train"]():
        for place in range(len(bits)):
            assert int(chr(answer[place])) == bits[: place + 1].count(b"1") % 2
    for columns, answer in task("addition", 50)["test"]():
        one, other = (int(columns[side::2][::-1]) for side in (0, 1))
        assert int(answer[::-1]) == one + other
        assert len(answer) == len(columns) // 2 + 1


@pytest.mark.parametrize("name", SIZED)
def test_a_task_can_be_made_of_any_length(name: str) -> None:
    sizes = {length: len(SIZED[name](random.Random(0), length)[0]) for length in (1, 7, 40)}
    assert all(size == length * (2 if name == "addition" else 1) for length, size in sizes.items())


def test_an_unknown_task_is_told_the_others() -> None:
    with pytest.raises(InputError, match="no task 'dats'; there are dates, copy, reverse"):
        task("dats", 5)
