"""Al-Rfou's auxiliary losses: which count when, that heads are training's alone, and that a resume loses nothing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import segue
from rank_runs import check_equal, weights
from ranks import on_ranks, succeeded
from runs import small_recipe
from segue.checkpoint import WEIGHTS, checkpoints, read_tensors
from segue.errors import SegueError
from segue.nn.xl import TransformerXL
from segue.recipe import Recipe, TrainConfig
from segue.text.lanes import Segment
from segue.training.intermediate import IntermediateObjective, counting_layers, objective_of
from segue.training.objective import Objective
from segue.training.run import read_log
from segue.training.state import TENSORS
from support import build, shape, some_tokens

LAYERS, UNTIL = 3, 12
TRAIN = TrainConfig(lanes=2, segment=5, memory=0, steps=24, intermediate=UNTIL, ahead=2)


def objective(train: TrainConfig = TRAIN) -> IntermediateObjective:
    torch.manual_seed(0)
    wanted = objective_of(train)(build(shape(layers=LAYERS)))
    assert isinstance(wanted, IntermediateObjective)
    return wanted.double().train()


def segment() -> Segment:
    tokens = some_tokens(2, 6)
    return Segment(tokens[:, :-1], tokens[:, 1:])


def outputs(model: TransformerXL) -> list[Tensor]:
    """(B, T, C) of each layer, computed by models of fewer layers."""
    states = []
    for layers in range(1, LAYERS + 1):
        part = build(shape(layers=layers))
        kept = {name: value for name, value in model.state_dict().items() if name in part.state_dict()}
        part.load_state_dict(kept)
        states.append(part(segment().tokens, part.start(lanes=2, reach=TRAIN.reach))[0])
    return states


@pytest.mark.parametrize(("step", "first"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (999, 2)])
@pytest.mark.parametrize("ahead", [1, 2])
def test_the_loss_is_the_printed_sum(step: int, first: int, ahead: int) -> None:
    trained = objective(TRAIN.model_copy(update={"ahead": ahead}))
    model, targets = trained.model, segment().targets
    assert isinstance(model, TransformerXL)
    nats, _, auxiliary = trained(segment(), model.start(lanes=2, reach=TRAIN.reach), step)
    states, wanted, head = outputs(model), torch.zeros((), dtype=torch.float64), iter(trained.heads)
    for layer in range(LAYERS):
        for offset in range(ahead):
            if (layer, offset) == (LAYERS - 1, 0):
                continue
            logprobs = (states[layer] @ next(head).T).log_softmax(dim=-1)
            for lane in range(2):
                for place in range(5 - offset if layer >= first else 0):
                    surprise = -logprobs[lane, place, targets[lane, place + offset]]
                    wanted = wanted + surprise * (1.0, 0.5)[offset] / 10
    assert next(head, None) is None
    assert_close(auxiliary, wanted)
    assert_close(nats, model.nats(states[-1], targets))


@given(st.integers(1, 70), st.integers(1, 1000), st.integers(0, 1000))
def test_layer_l_counts_until_l_nths(layers: int, until: int, step: int) -> None:
    counting = counting_layers(step, layers, until)
    assert list(counting) == [
        layer for layer in range(layers) if layer == layers - 1 or step / until < (layer + 1) / layers
    ]


def gradients(trained: Objective, step: int) -> dict[str, Tensor]:
    trained.zero_grad()
    nats, _, auxiliary = trained(segment(), trained.model.start(lanes=2, reach=TRAIN.reach), step)
    (nats.mean() if auxiliary is None else nats.mean() + auxiliary).backward()
    return {name: weight.grad for name, weight in trained.named_parameters()}


def test_the_head_of_a_layer_that_counts_no_more_has_a_gradient_of_zero() -> None:
    trained = objective()
    for step, first in ((0, 0), (4, 1), (8, 2)):
        moved = gradients(trained, step)["heads"].flatten(1).any(dim=1)
        assert moved.tolist() == [layer >= first for layer in (0, 0, 1, 1, 2)]


def test_once_all_have_ended_the_loss_is_the_plain_one() -> None:
    trained = objective(TRAIN.model_copy(update={"ahead": 1}))
    plain = {f"model.{name}": value for name, value in gradients(Objective(trained.model), 0).items()}
    plain = {name.replace("model.model.", "model."): value for name, value in plain.items()}
    ended = gradients(trained, UNTIL)
    assert not ended.pop("heads").any()
    assert_close(ended, plain, rtol=0, atol=0)
    with pytest.raises(AssertionError):
        assert_close({**gradients(trained, 0), "heads": None}, {**plain, "heads": None})


def test_reading_knows_nothing_of_the_heads() -> None:
    trained = objective().eval()
    memory = trained.model.start(lanes=2, reach=TRAIN.reach)
    nats, _, auxiliary = trained(segment(), memory)
    assert auxiliary is None
    assert_close(nats, Objective(trained.model)(segment(), memory)[0], rtol=0, atol=0)
    assert objective_of(TRAIN.model_copy(update={"intermediate": 0, "ahead": 1})) is Objective
    only_ahead = objective(TRAIN.model_copy(update={"intermediate": 0}))
    assert len(only_ahead.heads) == 1


def recipe(**train: Any) -> Recipe:
    """Layers stop counting at steps 4 and 8."""
    values = {"memory": 0, "steps": 12, "intermediate": 12, "ahead": 2, "save_every": 1, "keep": 99, **train}
    small = small_recipe(**values)
    return small.model_copy(update={"model": small.model.model_copy(update={"layers": LAYERS})})


@pytest.mark.parametrize(
    "changes", [{"optimizer": "sgd", "beta1": 0.99}, {"accumulate": 2, "validate_every": 5}]
)
def test_a_resumed_run_ends_with_the_same_bits(changes: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    whole = segue.train(recipe(**changes), corpus, tmp_path / "whole")
    for step in (3, 6):
        part = tmp_path / f"part-{step}"
        shutil.copytree(whole, part)
        for folder in checkpoints(part)[step:]:
            shutil.rmtree(folder)
        segue.resume(part)
        for name in (WEIGHTS, TENSORS):
            ends = [(checkpoints(run)[-1] / name).read_bytes() for run in (whole, part)]
            assert ends[0] == ends[1], f"{name} after a resume at {step}"
    saved = read_tensors(checkpoints(whole)[-1] / TENSORS)
    assert saved["heads/heads"].shape == (5, 256, 8)
    fresh = read_tensors(checkpoints(whole)[0] / TENSORS)["heads/heads"]
    assert not torch.equal(saved["heads/heads"], fresh), "heads are trained"
    assert not [name for name in read_tensors(checkpoints(whole)[-1] / WEIGHTS) if "heads" in name]
    assert segue.load(whole).model.config == recipe().model
    logged = [event["auxiliary"] for event in read_log(whole) if event["kind"] == "step"]
    assert logged[0] > logged[4] > logged[8] > 0


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_train_the_heads_as_one_process_does(sharded: bool, corpus: Path, tmp_path: Path) -> None:
    plain = recipe(lanes=4, accumulate=2, sharded=sharded, save_every=6)
    still = plain.model.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
    plain = plain.model_copy(update={"model": still})
    alone = segue.train(plain, corpus, tmp_path / "alone")
    succeeded(on_ranks(2, tmp_path, segue.train, plain, corpus, tmp_path / "shared"))
    check_equal(alone, tmp_path / "shared", steps=12)
    both = [
        read_tensors(run / f"checkpoints/step-{6:08d}" / TENSORS)["heads/heads"]
        for run in (alone, tmp_path / "shared")
    ]
    assert_close(both[0], both[1], rtol=0, atol=1e-9)
    shutil.rmtree(tmp_path / "shared/checkpoints/step-00000012")  # and one process takes it over
    segue.resume(tmp_path / "shared", changes=["train.sharded=false"])
    assert_close(weights(tmp_path / "shared", 12), weights(alone, 12), rtol=0, atol=1e-9)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(SegueError, match="every position counts"):
        recipe(loss="half")
    values = recipe().model_dump(mode="json")
    values["model"] = {"kind": "recurrent", "vocab": 256, "width": 8}
    with pytest.raises(SegueError, match="a recurrent model is trained without them"):
        Recipe(**values)
