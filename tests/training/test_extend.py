"""Extending a run: the learning rate goes on as was asked, and says so."""

from pathlib import Path

import pytest

import segue
from runs import small_recipe
from segue.checkpoint import CHECKPOINTS, checkpoints, step_of
from segue.errors import SegueError
from segue.recipe import Recipe, TrainConfig, read_recipe
from segue.training.loop import Event
from segue.training.optim import learning_rate_at
from segue.training.run import read_log


def rates(run: Path) -> list[float]:
    return [event["learning_rate"] for event in read_log(run) if event["kind"] == "step"]


def final_weights(run: Path) -> bytes:
    return (checkpoints(run)[-1] / "model.safetensors").read_bytes()


def planned(**changes: object) -> TrainConfig:
    values = {"lanes": 1, "segment": 1, "memory": 0, "learning_rate": 1.0, "warmup": 2, **changes}
    return TrainConfig(**values)


def test_a_falling_rate_wants_to_be_told_how_it_goes_on(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(), corpus, tmp_path / "run")
    before = (run / "recipe.toml").read_bytes()
    with pytest.raises(SegueError, match="say how to go on: --extend hold .*rewarm.*stretch") as refused:
        segue.resume(run, changes=["train.steps=24"])
    assert "\n" not in str(refused.value)
    assert (run / "recipe.toml").read_bytes() == before
    with pytest.raises(SegueError, match="--extend says how to go on beyond 12 steps"):
        segue.resume(run, extend="hold")


def test_each_way_to_go_on(corpus: Path, tmp_path: Path) -> None:
    first = [learning_rate_at(step, small_recipe().train) for step in range(12)]
    ways = {
        "hold": [first[-1]] * 12,
        "rewarm": first,
        "stretch": [learning_rate_at(step, small_recipe(steps=24).train) for step in range(12, 24)],
    }
    for how, wanted in ways.items():
        run, events = segue.train(small_recipe(), corpus, tmp_path / how), list[Event]()
        segue.resume(run, changes=["train.steps=24"], extend=how, watch=events.append)
        assert rates(run) == [*first, *wanted]
        notes = [event.values["text"] for event in events if event.kind == "note"]
        assert len(notes) == 1
        assert "the learning rate" in notes[0]


def test_an_extended_run_resumes_exactly_and_extends_again(corpus: Path, tmp_path: Path) -> None:
    whole = segue.train(small_recipe(keep=99, save_every=1), corpus, tmp_path / "whole")
    segue.resume(whole, changes=["train.steps=18"], extend="rewarm")
    segue.resume(whole, changes=["train.steps=20"], extend="hold")
    train = Recipe(**read_recipe(whole / "recipe.toml")).train
    assert train.extensions == ((12, "rewarm"), (18, "hold"))
    assert rates(whole) == [learning_rate_at(step, train) for step in range(20)]
    assert rates(whole)[18:] == [rates(whole)[17]] * 2
    wanted = final_weights(whole)
    for folder in checkpoints(whole):
        if step_of(folder) > 15:
            folder.rename(tmp_path / folder.name)
    segue.resume(whole)
    assert final_weights(whole) == wanted


def test_fewer_steps_are_told_as_well(corpus: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    run = segue.train(small_recipe(steps=40, minutes=1e-9), corpus, tmp_path / "run")
    segue.resume(run, changes=["train.steps=10", "train.minutes=9"], watch=events.append)
    assert any("as if 10 steps had been planned" in event.values.get("text", "") for event in events)


def test_the_rate_of_a_constant_schedule_with_a_cool_down() -> None:
    train = planned(schedule="constant", steps=10, cooldown=4, floor=0.2)
    learning_rates = [learning_rate_at(step, train) for step in range(10)]
    assert learning_rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4])
    for wrong in ({"schedule": "cosine"}, {"cooldown": 11}):
        with pytest.raises(SegueError, match="cooldown"):
            planned(**{"schedule": "constant", "steps": 10, "cooldown": 4, **wrong})


def test_a_run_with_a_cool_down_is_extended_as_if_it_had_been_planned(corpus: Path, tmp_path: Path) -> None:
    cooled = {"schedule": "constant", "cooldown": 3, "save_every": 4, "keep": 1}
    long = segue.train(small_recipe(steps=20, **cooled), corpus, tmp_path / "long")
    run = segue.train(small_recipe(steps=12, **cooled), corpus, tmp_path / "run")
    assert [step_of(folder) for folder in checkpoints(run)] == [9, 12], "the trunk is kept"
    short = final_weights(run)
    events: list[Event] = []
    segue.resume(run, changes=["train.steps=20"], watch=events.append)
    assert final_weights(run) == final_weights(long)
    assert "going on from step 9" in events[0].values["text"]
    assert (run / CHECKPOINTS / "cooled-step-00000012" / "model.safetensors").read_bytes() == short
    segue.load(run / CHECKPOINTS / "cooled-step-00000012")
    assert [step_of(folder) for folder in checkpoints(run)] == [17, 20]


def test_without_the_trunk_it_says_what_else_can_be_done(corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(schedule="constant", cooldown=3, save_every=0, keep=1)
    run = segue.train(recipe, corpus, tmp_path / "run")
    checkpoints(run)[0].rename(tmp_path / "elsewhere")
    with pytest.raises(
        SegueError, match="has no checkpoint of step 9, before the learning rate began to fall"
    ):
        segue.resume(run, changes=["train.steps=20"])
    segue.resume(run, changes=["train.steps=20"], extend="hold")
