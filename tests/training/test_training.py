"""What training does: schedules, optimizers, chunks, best and newest checkpoints, when it stops."""

import json
import math
from pathlib import Path

import pytest
import torch

import segue
from runs import make_corpus, small_recipe
from segue.checkpoint import checkpoints, load
from segue.errors import SegueError
from segue.recipe import Recipe, TrainConfig, read_recipe, with_changes
from segue.text.corpus import open_corpus
from segue.training.language import LanguageTask
from segue.training.loop import Event, Training
from segue.training.muon import Muon, orthogonalised
from segue.training.optim import build_optimizers, learning_rate_at
from segue.training.run import read_log
from support import build, shape


def schedule(name: str, **changes: object) -> list[float]:
    values = {
        "lanes": 1,
        "segment": 1,
        "memory": 0,
        "steps": 10,
        "learning_rate": 2.0,
        "schedule": name,
        **changes,
    }
    train = TrainConfig(**values)
    return [learning_rate_at(step, train) for step in range(11)]


def test_the_rate_of_each_schedule() -> None:
    cosine = schedule("cosine", warmup=2, floor=0.1)
    assert cosine[:3] == [1.0, 2.0, 2.0]
    assert cosine[6] == pytest.approx(2 * (0.1 + 0.9 * 0.5))
    assert cosine[10] == pytest.approx(0.2)
    assert schedule("linear")[5] == pytest.approx(1.0)
    assert schedule("constant", warmup=4)[3:] == [2.0] * 8
    inverse = schedule("inverse-sqrt", warmup=4)
    assert inverse[3] == inverse[4] * math.sqrt(5 / 4) == pytest.approx(2.0)
    assert inverse[8] == pytest.approx(2 * math.sqrt(4 / 9))


def test_which_weights_go_to_which_optimizer() -> None:
    model = build(shape())
    matrices, rest = build_optimizers(model, small_recipe(optimizer="muon").train)
    assert isinstance(matrices, Muon)
    names = {weight: name for name, weight in model.named_parameters()}
    chosen = {names[weight] for group in matrices.param_groups for weight in group["params"]}
    assert chosen == {
        name
        for name in names.values()
        if name.startswith("blocks.") and name.endswith("weight") and "norm" not in name
    }
    others = {names[weight] for group in rest.param_groups for weight in group["params"]}
    assert chosen | others == set(names.values())
    assert not chosen & others


@pytest.mark.parametrize("size", [(3, 8, 5), (2, 5, 8), (1, 6, 6)])
def test_muon_makes_every_direction_count_alike(size: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(*size, dtype=torch.float64)
    left, values, right = torch.linalg.svd(orthogonalised(matrices), full_matrices=False)
    assert ((values > 0.6) & (values < 1.3)).all()
    exact = torch.linalg.svd(matrices, full_matrices=False)
    torch.testing.assert_close((left @ right).abs(), (exact.U @ exact.Vh).abs(), atol=1e-6, rtol=0)


def test_a_step_of_muon_by_hand() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 6, dtype=torch.float64))
    before = weight.detach().clone()
    weight.grad = torch.randn(4, 6, dtype=torch.float64)
    Muon([weight], learning_rate=0.1, momentum=0.9, weight_decay=0.5).step()
    average = 0.1 * weight.grad
    direction = orthogonalised((0.1 * weight.grad + 0.9 * average)[None])[0]
    expected = before * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 6**0.5 * direction
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_it_learns(optimizer: str, corpus: Path, tmp_path: Path) -> None:
    run = segue.train(
        small_recipe(steps=60, optimizer=optimizer, learning_rate=1e-2), corpus, tmp_path / "run"
    )
    losses = [event["nats"] for event in read_log(run) if event["kind"] == "step"]
    assert losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


def test_chunks_of_lanes_add_up_to_the_whole(corpus: Path, tmp_path: Path) -> None:
    """In one step, from nothing, without dropout: the same update but for rounding."""
    model = {"vocab": 256, "width": 8, "layers": 2, "heads": 2}
    weights = []
    for chunks in (1, 2, 4):
        recipe = small_recipe(steps=3, accumulate=chunks).model_copy(
            update={"model": segue.XLConfig(**model)}
        )
        run = segue.train(recipe, corpus, tmp_path / str(chunks))
        weights.append(dict(load(run).model.state_dict()))
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=1e-3, atol=1e-4)


def test_the_run_tells_everything_about_itself(corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(validate_every=5, validate_tokens=200, save_every=2, keep=2)
    events: list[Event] = []
    run = segue.train(recipe, corpus, tmp_path / "run", watch=events.append)
    assert Recipe(**read_recipe(run / "recipe.toml")) == recipe
    told = json.loads((run / "run.json").read_text())
    assert told["torch"] == torch.__version__
    assert told["threads"] == torch.get_num_threads()
    lasting = [event for event in events if event.kind != "progress"]
    assert [event["kind"] for event in read_log(run)] == [event.kind for event in lasting]
    validating = [event.values for event in events if event.kind == "progress"]
    assert validating[-1] == {"task": "validating", "done": 200, "total": 200}
    validations = {event.step: event.values["nats"] for event in events if event.kind == "valid"}
    assert list(validations) == [5, 10, 12]  # the end counts too
    best = min(validations, key=lambda step: validations[step])
    kept = {int(path.name.removeprefix("step-")) for path in checkpoints(run)}
    assert kept == {10, 12} | {best}
    assert segue.checkpoint.best_checkpoint(run).name == f"step-{best:08d}"
    assert segue.load(run).reading == recipe.reading


def test_it_stops_on_a_plateau_and_on_minutes(corpus: Path, tmp_path: Path) -> None:
    stuck = small_recipe(steps=50, learning_rate=1e-12, validate_every=2, patience=2, validate_tokens=50)
    log = read_log(segue.train(stuck, corpus, tmp_path / "stuck"))
    assert log[-1]["reason"] == "plateau"
    assert log[-1]["step"] < 50
    timed = read_log(segue.train(small_recipe(steps=10**6, minutes=0.005), corpus, tmp_path / "timed"))
    assert timed[-1]["reason"] == "minutes"


def test_a_loss_that_is_not_finite_names_step_and_lane_and_keeps_the_last_good(
    corpus: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(learning_rate=1e38, warmup=0, clip=1e30, optimizer="adamw", save_every=1)
    with pytest.raises(
        SegueError, match=r"lane \d is not finite at step \d+; the last good checkpoint is .*step-0"
    ):
        segue.train(recipe, corpus, tmp_path / "run")
    load(tmp_path / "run")


def test_fine_tuning_begins_with_the_weights_given(corpus: Path, tmp_path: Path) -> None:
    first = load(segue.train(small_recipe(steps=5), corpus, tmp_path / "first"))
    tuned = segue.train(
        small_recipe(steps=1, learning_rate=1e-12), corpus, tmp_path / "tuned", begin_with=first
    )
    after, given = load(tuned).model.state_dict(), first.model.state_dict()
    torch.testing.assert_close(dict(after), dict(given), rtol=0, atol=1e-6)
    other = small_recipe().model_copy(update={"model": segue.XLConfig(vocab=256, width=4, heads=1)})
    with pytest.raises(SegueError, match="keeps the bundle's shape"):
        segue.train(other, corpus, tmp_path / "other", begin_with=first)
    characters = make_corpus(tmp_path / "words", tokenizer="words")
    vocab = segue.text.corpus.open_corpus(characters).header.vocab
    with pytest.raises(SegueError, match=rf"256 symbols and .* {vocab}; .*--set model.vocab={vocab}"):
        segue.train(small_recipe(), characters, tmp_path / "unfit")


def test_a_gradient_that_is_not_finite_never_reaches_the_weights(corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(save_every=1)
    task = LanguageTask(recipe, open_corpus(corpus), torch.device("cpu"))
    training = Training(recipe.train, tmp_path / "run", task, task.fresh())
    spoilt = training.state.model.blocks[0].attention.out.weight
    spoilt.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(SegueError, match="gradient is not finite at step 1"):
        list(training.events())
    assert all(weight.isfinite().all() for weight in training.state.model.parameters())


def test_fine_tuning_keeps_the_givers_weights_and_the_recipes_dropout(corpus: Path, tmp_path: Path) -> None:
    first = load(segue.train(small_recipe(steps=5), corpus, tmp_path / "first"))
    before = {name: weight.clone() for name, weight in first.model.state_dict().items()}
    shaken = small_recipe(steps=4, save_every=0)
    shaken = shaken.model_copy(update={"model": shaken.model.model_copy(update={"dropout": 0.5})})
    events: list[Event] = []

    def leave(event: Event) -> None:
        events.append(event)
        if event.kind == "step" and event.step == 2:
            raise KeyboardInterrupt

    whole = segue.train(shaken, corpus, tmp_path / "whole", begin_with=first)
    with pytest.raises(KeyboardInterrupt):
        segue.train(shaken, corpus, tmp_path / "part", begin_with=first, watch=leave)
    segue.resume(tmp_path / "part")  # from the weights that were given, not from nothing
    for run in (whole, tmp_path / "part"):
        assert load(run).model.dropout.p == 0.5
    files = [checkpoints(run)[-1] / "model.safetensors" for run in (whole, tmp_path / "part")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not first.model.training
    torch.testing.assert_close(dict(first.model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train": {"precision": "bfloat16"}}, "bfloat16 is for GPUs"),
        ({"model": {"encoding": "learned", "max_positions": 8}}, "8 positions and training would need more"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(
    changes: dict[str, dict[str, object]], match: str, corpus: Path, tmp_path: Path
) -> None:
    values = small_recipe().model_dump()
    recipe = Recipe(**{name: {**part, **changes.get(name, {})} for name, part in values.items()})
    with pytest.raises(SegueError, match=match):
        segue.train(recipe, corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_segments_longer_than_a_lane_are_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SegueError, match="longer than a lane"):
        segue.train(small_recipe(segment=5000), corpus, tmp_path / "run")


def test_settings_are_changed_by_name() -> None:
    values = {"train": {"steps": 1}}
    changed = with_changes(
        values, ["train.steps=500", "train.learning_rate=1e-3", "model.encoding=shaw", "model.cutoffs=[1, 2]"]
    )
    assert changed == {
        "train": {"steps": 500, "learning_rate": 1e-3},
        "model": {"encoding": "shaw", "cutoffs": [1, 2]},
    }
    assert values == {"train": {"steps": 1}}
    for wrong, match in (("steps", "name=value"), ("train.steps.more=1", "is a value")):
        with pytest.raises(SegueError, match=match):
            with_changes(values, [wrong])


def test_a_model_trains_with_the_window_that_it_will_read_with(corpus: Path, tmp_path: Path) -> None:
    """A window that holds all keys changes no bit; a narrow one, and a clamp, change the loss."""
    ways = {"whole": {}, "wide": {"span": 16}, "narrow": {"span": 2}, "clamped": {"clamp": 1}}
    losses = {}
    for name, reach in ways.items():
        run = segue.train(small_recipe(steps=4, memory=9, segment=7, **reach), corpus, tmp_path / name)
        losses[name] = [event["nats"] for event in read_log(run) if event["kind"] == "step"]
    assert losses["wide"] == losses["whole"]
    assert losses["narrow"][1:] != losses["whole"][1:]
    assert losses["clamped"][1:] != losses["whole"][1:]


def test_adams_epsilon_is_a_setting_and_a_clip_of_nothing_clips_nothing(corpus: Path, tmp_path: Path) -> None:
    model = build(shape())
    (adam,) = build_optimizers(model, small_recipe(optimizer="adam", epsilon=1e-9).train)
    assert adam.param_groups[0]["eps"] == 1e-9
    losses = {}
    for clip in (0, 1e9, 1e-3):
        run = segue.train(small_recipe(steps=4, clip=clip, epsilon=1.0), corpus, tmp_path / str(clip))
        losses[clip] = [event["nats"] for event in read_log(run) if event["kind"] == "step"]
    assert losses[0] == losses[1e9]
    assert losses[0] != losses[1e-3]
