"""An objective may have an auxiliary loss: it is added to the loss, and logged beside it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runs import small_recipe
from segue.distributed import ALONE
from segue.errors import SegueError
from segue.text.corpus import open_corpus
from segue.text.lanes import Segment
from segue.training.language import LanguageTask
from segue.training.loop import Event, Training
from segue.training.objective import Objective, ObjectiveOutput

CPU = torch.device("cpu")


class WeightPenalty(Objective):
    """An auxiliary loss whose gradient is known: half the square of all weights has the weights themselves."""

    scale = 1.0

    def forward(self, segment: Segment, memory: Any, step: int = 0) -> ObjectiveOutput:
        penalty: Tensor = sum(
            (weight.square().sum() / 2 for weight in self.model.parameters()), torch.zeros(())
        )
        return super().forward(segment, memory, step)._replace(auxiliary=self.scale * penalty)


class NoPenalty(WeightPenalty):
    scale = 0.0


class InfinitePenalty(WeightPenalty):
    scale = float("inf")


def gradients(corpus: Path, objective: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Of the first step, summed over its micro-batches."""
    task = LanguageTask(small_recipe(accumulate=2), open_corpus(corpus), CPU, ALONE, objective)
    state = task.fresh()
    for micro_batch in task.micro_batches(state):
        micro_batch.backward()
    return state.model, {name: weight.grad for name, weight in state.model.named_parameters()}


def events(corpus: Path, run: Path, objective: Any) -> list[Event]:
    recipe = small_recipe(accumulate=2, steps=4)
    task = LanguageTask(recipe, open_corpus(corpus), CPU, ALONE, objective)
    return [
        event for event in Training(recipe.train, run, task, task.fresh()).events() if event.kind == "step"
    ]


def test_the_gradient_of_an_auxiliary_loss_is_added_once_a_step(corpus: Path, exact: None) -> None:
    _, plain = gradients(corpus, Objective)
    model, penalised = gradients(corpus, WeightPenalty)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(penalised[name], plain[name] + weight.detach())


def test_an_auxiliary_loss_is_logged_beside_the_nats(corpus: Path, tmp_path: Path) -> None:
    plain = events(corpus, tmp_path / "plain", Objective)
    zero = events(corpus, tmp_path / "zero", NoPenalty)
    penalised = events(corpus, tmp_path / "penalised", WeightPenalty)
    assert all("auxiliary" not in event.values for event in plain)
    assert [event.values["nats"] for event in zero] == [event.values["nats"] for event in plain]
    assert all(event.values["auxiliary"] == 0 for event in zero)
    assert penalised[0].values["nats"] == plain[0].values["nats"]
    assert all(event.values["auxiliary"] > 0 for event in penalised)


def test_an_auxiliary_loss_that_is_not_finite_stops_the_run(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SegueError, match="the auxiliary loss is not finite at step 1"):
        events(corpus, tmp_path / "run", InfinitePenalty)
