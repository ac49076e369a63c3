"""Settings are closed and checked when built; a mistake is one line that says what to do."""

from typing import Any

import pytest

from segue.config import Reach, Reading, Settings, XLConfig
from segue.errors import ConfigError, SegueError
from segue.recipe import Recipe, TrainConfig

TRAIN = {"lanes": 1, "segment": 8, "memory": 8, "steps": 5}


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (TrainConfig, {**TRAIN, "stpes": 5}, "TrainConfig has no 'stpes'; did you mean 'steps'?"),
        (
            Reach,
            {"memory": 1, "zzz": 2},
            "Reach has no 'zzz'; it has memory, clamp, span, initial, positions",
        ),
        (XLConfig, {}, "XLConfig needs 'vocab'"),
        (XLConfig, {"vocab": 0}, "XLConfig: vocab should be greater than 0; found 0"),
        (
            XLConfig,
            {"vocab": 9, "width": 10, "heads": 3},
            "XLConfig: width 10 is not a multiple of heads 3; change one, or give head_width as well",
        ),
        (
            XLConfig,
            {"vocab": 9, "cutoffs": (5, 5)},
            "XLConfig: cutoffs [5, 5] should rise and stay below the vocabulary of 9",
        ),
        (
            XLConfig,
            {"vocab": 9, "cutoffs": (9,)},
            "XLConfig: cutoffs [9] should rise and stay below the vocabulary of 9",
        ),
        (
            XLConfig,
            {"vocab": 9, "width": 8, "cutoffs": (3,), "divisor": 16},
            "XLConfig: divisor 16 leaves no width for the last of 2 clusters; "
            "use fewer cutoffs, or an embedding wider than 8",
        ),
        (
            XLConfig,
            {"vocab": 9, "encoding": "shaw"},
            "XLConfig: encoding 'shaw' wants a table of 1 row or more; found table=0",
        ),
        (
            XLConfig,
            {"vocab": 9, "table": 4},
            "XLConfig: encoding 'xl' wants no table; found table=4",
        ),
        (TrainConfig, {**TRAIN, "decay": 0.1}, "TrainConfig: adam has no decay; found decay=0.1: use adamw"),
        (
            TrainConfig,
            {**TRAIN, "patience": 2},
            "TrainConfig: patience 2 counts validations; set validate_every too",
        ),
        (
            TrainConfig,
            {**TRAIN, "initial": "zeros"},
            "TrainConfig: a memory of zeros cannot begin in the middle of a segment; set documents=false",
        ),
        (Reach, {"memory": -1}, "Reach: memory should be greater than or equal to 0; found -1"),
        (Reach, {"memory": 1, "clamp": 0}, "Reach: clamp should be greater than 0; found 0"),
        (Reach, {"memory": 1, "span": 0}, "Reach: span should be greater than 0; found 0"),
        (
            Reach,
            {"memory": 1, "initial": "ones"},
            "Reach: initial should be 'empty' or 'zeros'; found 'ones'",
        ),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    kind: type[Settings], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    assert str(caught.value) == message


def test_positions_may_not_restart_while_memory_is_carried() -> None:
    with pytest.raises(SegueError, match="cannot tell the segments apart; found memory=4"):
        Reach(memory=4, positions="restart")
    assert Reach(memory=0, positions="restart").memory == 0


def test_a_mistake_deep_inside_is_named_too() -> None:
    values = {
        "model": {"vocab": 9},
        "train": {**TRAIN, "stpes": 5},
        "reading": {"segment": 1, "reach": {"memory": 1}},
    }
    with pytest.raises(ConfigError, match="TrainConfig has no 'stpes'"):
        Recipe(**values)
    with pytest.raises(ConfigError, match="TrainConfig has no 'stpes'"):
        Recipe.model_validate(values)


def test_training_and_reading_agree_on_positions() -> None:
    values = {
        "model": {"vocab": 9, "encoding": "sinusoidal"},
        "reading": {"segment": 4, "reach": {"memory": 0}},
    }
    with pytest.raises(ConfigError, match="'restart' and reading.reach.positions 'onward'; make them agree"):
        Recipe(**values, train={**TRAIN, "memory": 0, "positions": "restart"})


def test_a_reading_is_changed_by_name() -> None:
    reading = Reading(segment=8, reach=Reach(memory=4, clamp=3, span=4))
    assert reading.changed() == reading
    assert reading.changed(memory=9) == Reading(segment=8, reach=Reach(memory=9, clamp=3))
    assert reading.changed(clamp=0, span=2, segment=5) == Reading(segment=5, reach=Reach(memory=4, span=2))
    alone = Reading(segment=8, reach=Reach(memory=0, positions="restart"))
    assert alone.changed(memory=0).reach.positions == "restart"
    assert alone.changed(memory=2).reach.positions == "onward"


def test_widths_follow_from_the_width_unless_given() -> None:
    config = XLConfig(vocab=9, width=24, heads=4)
    assert (config.head_width, config.inner, config.embedding) == (6, 96, 24)
    given = XLConfig(vocab=9, width=24, heads=5, head_width=7, inner=3, embedding=8)
    assert (given.head_width, given.inner, given.embedding) == (7, 3, 8)


def test_settings_survive_json_and_are_frozen() -> None:
    reading = Reading(segment=8, reach=Reach(memory=4, clamp=3))
    assert Reading.model_validate_json(reading.model_dump_json()) == reading
    config = XLConfig(vocab=9, cutoffs=(2, 4))
    assert XLConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(Exception, match="frozen"):
        config.vocab = 3  # type: ignore[misc]
