"""Settings are closed and checked when built; a mistake is one line that says what to do."""

from pathlib import Path
from typing import Any

import pytest

from segue.config import Reach, Reading, Settings, XLConfig
from segue.errors import ConfigError, SegueError
from segue.recipe import Recipe, TrainConfig, read_recipe, recipe_of, with_changes
from segue.renamed import renamed

TRAIN = {"lanes": 1, "segment": 8, "memory": 8, "steps": 5}


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (TrainConfig, {**TRAIN, "stpes": 5}, "TrainConfig has no 'stpes'; did you mean 'steps'?"),
        (
            Reach,
            {"memory": 1, "zzz": 2},
            "Reach has no 'zzz'; it has memory, clamp, span, pinned, initial, positions",
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
            "XLConfig: encoding 'shaw' needs max_distance of 1 or more; found max_distance=0",
        ),
        (
            XLConfig,
            {"vocab": 9, "max_positions": 4},
            "XLConfig: encoding 'xl' needs no max_positions; found max_positions=4",
        ),
        (
            TrainConfig,
            {**TRAIN, "weight_decay": 0.1},
            "TrainConfig: adam has no weight decay; found weight_decay=0.1: use adamw",
        ),
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
    assert (config.head_width, config.feedforward, config.embedding) == (6, 96, 24)
    given = XLConfig(vocab=9, width=24, heads=5, head_width=7, feedforward=3, embedding=8)
    assert (given.head_width, given.feedforward, given.embedding) == (7, 3, 8)


def test_settings_survive_json_and_are_frozen() -> None:
    reading = Reading(segment=8, reach=Reach(memory=4, clamp=3))
    assert Reading.model_validate_json(reading.model_dump_json()) == reading
    config = XLConfig(vocab=9, cutoffs=(2, 4))
    assert XLConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(Exception, match="frozen"):
        config.vocab = 3  # type: ignore[misc]


def test_numbers_are_finite_and_fit_into_64_bits() -> None:
    for value in (2**63, -(2**64), 10**5000, [1, 10**400], float("inf"), float("nan")):
        for kind, values in (
            (XLConfig, {"vocab": 9, "cutoffs": value}),
            (TrainConfig, {**TRAIN, "learning_rate": value}),
        ):
            with pytest.raises(ConfigError) as caught:
                kind(**values)
            assert len(str(caught.value)) < 200


def test_what_was_found_is_shown_in_short() -> None:
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    for value in (deep, "x" * 10**6, [0] * 10**5):
        with pytest.raises(ConfigError, match="vocab should be a valid integer") as caught:
            XLConfig(vocab=value)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a = " + "[" * 900, "nested too deeply"),
        ("a = 1 1", "is no TOML"),
        ("a = 0", "needs 'model'"),
        (".".join("a" * 5000) + " = 1", "is no recipe"),
        ("# comment\n" * 10**4, "is no recipe"),
    ],
)
def test_a_strange_recipe_is_one_line(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        recipe_of(read_recipe(tmp_path / "recipe.toml"))


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 5000, "{a=" * 3000, "0x" + "f" * 6000])
def test_a_strange_change_is_one_line(value: str) -> None:
    with pytest.raises(ConfigError):
        recipe_of(with_changes({"model": {"vocab": 9}}, [f"model.width={value}"]))


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ({"model": {"inner": 8, "table": 0}}, {"model": {"feedforward": 8, "max_positions": 0}}),
        (
            {"model": {"encoding": "shaw", "table": 3}},
            {"model": {"encoding": "shaw", "max_distance": 3}},
        ),
        ({"train": {"rate": 1e-3, "decay": 0.1}}, {"train": {"learning_rate": 1e-3, "weight_decay": 0.1}}),
        (
            {"model": {"width": 4}, "translating": {"width": 2}},
            {"model": {"width": 4}, "translating": {"beam_width": 2}},
        ),
        ({"model": 3}, {"model": 3}),
    ],
)
def test_recipes_and_bundles_of_earlier_versions_are_read(old: dict[str, Any], now: dict[str, Any]) -> None:
    assert renamed(old) == now
    assert renamed(now) == now


def test_an_old_name_in_code_is_refused_with_the_new_one() -> None:
    with pytest.raises(ConfigError, match="TrainConfig has no 'rate'; did you mean 'learning_rate'?"):
        TrainConfig(**TRAIN, rate=1.0)
