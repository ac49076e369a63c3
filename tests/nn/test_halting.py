"""Adaptive computation time: the textbook form by hand, and the form that runs held to it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import UniversalConfig
from segue.errors import SegueError
from segue.nn.halting import (
    Halting,
    Pondering,
    Thought,
    first_thought,
    halting_weights,
    listing_weights,
    ponder_cost,
)

TEXTBOOK: dict[str, Any] = {"act": halting_weights, "listing": listing_weights}


def chances(*columns: list[float]) -> Tensor:
    """(N, …) Of each token its probabilities, step by step."""
    return torch.tensor(columns, dtype=torch.float64).T


def test_weights_by_hand() -> None:
    weights, (steps, remainder) = halting_weights(
        chances([0.5, 0.3, 0.9, 0.9], [0.995, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1], [0.5, 0.5, 0.5, 0.5])
    )
    by_token = [[0.5, 0.3, 0.2, 0], [1, 0, 0, 0], [0.1, 0.1, 0.1, 0.7], [0.5, 0.5, 0, 0]]
    assert_close(weights, chances(*by_token))
    assert steps.tolist() == [3, 1, 4, 2]
    assert_close(remainder, chances([0.2, 1, 0.7, 0.5])[:, 0])


def test_the_listing_by_hand() -> None:
    """Weights 0.5 and R = 0.5 add up to 0.75, since the first shrinks; and there is no remainder at the limit."""
    weights, (steps, remainder) = listing_weights(chances([0.5, 0.5, 0.5], [0.1, 0.1, 0.1]))
    assert_close(weights, chances([0.25, 0.5, 0], [0.1 * 0.81, 0.1 * 0.9, 0.1]))
    assert steps.tolist() == [2, 3]
    assert remainder.tolist() == [0.5, 0]


probabilities = st.lists(
    st.lists(st.floats(0.001, 0.999), min_size=3, max_size=3), min_size=2, max_size=7
).map(lambda rows: torch.tensor(rows, dtype=torch.float64))


@given(probabilities)
def test_weights_add_up_to_one_and_the_listings_do_not_exceed_it(given_chances: Tensor) -> None:
    weights, (steps, remainder) = halting_weights(given_chances)
    assert_close(weights.sum(dim=0), torch.ones(3, dtype=torch.float64))
    assert (weights >= 0).all()
    assert ((steps >= 1) & (steps <= len(given_chances))).all()
    assert ((remainder > 0) & (remainder <= 1)).all()
    shrunk, _ = listing_weights(given_chances)
    before, short = weights.clone(), 1 - shrunk.sum(dim=0)
    unhalted = (given_chances.cumsum(dim=0) <= 0.99).all(dim=0)
    before[-1] = torch.where(unhalted, given_chances[-1], before[-1])
    assert_close(short, (1 - before).prod(dim=0))  # Π (1 - w)


def unit(halting: str) -> Halting:
    """A halting unit that reads its probability off the first number of what enters: w = (1, 0), b = 0."""
    built = Halting(UniversalConfig(vocab=3, width=2, heads=1, steps=9, halting=halting)).double()
    with torch.no_grad():
        built.unit.weight.copy_(torch.tensor([[1.0, 0.0]]))
        built.unit.bias.zero_()
    return built


def run(halting: str, wanted: Tensor, states: Tensor, real: Tensor | None = None) -> tuple[Thought, Tensor]:
    """The form that runs, over states (N, tokens, 2); and what was entered, whose logits its gradient goes to."""
    act, entered = unit(halting), torch.stack([wanted.logit(), torch.zeros_like(wanted)], dim=-1)
    entered = entered.requires_grad_()
    real = torch.ones(wanted.size(1), dtype=torch.bool) if real is None else real
    thought = first_thought(torch.zeros_like(states[0]), real)
    for number, (step, after) in enumerate(zip(entered, states, strict=True)):
        thought = act(thought, step, after, last=number + 1 == len(states))
    return thought, entered


@pytest.mark.parametrize("halting", TEXTBOOK)
@given(wanted=probabilities)
def test_what_runs_is_the_textbook(halting: str, wanted: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(*wanted.shape, 2, generator=generator, dtype=torch.float64)
    thought, _ = run(halting, wanted, states)
    weights, pondering = TEXTBOOK[halting](wanted)
    assert_close(thought.output, (weights[..., None] * states).sum(dim=0))
    assert thought.pondering.steps.tolist() == pondering.steps.tolist()
    assert_close(thought.pondering.remainder, pondering.remainder)
    frozen_at = states.gather(0, (pondering.steps - 1)[None, :, None].expand(1, -1, 2))[0]
    assert_close(thought.state, frozen_at)


@pytest.mark.parametrize("halting", TEXTBOOK)
@given(wanted=probabilities)
def test_gradients_of_what_runs_are_the_textbooks(halting: str, wanted: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(*wanted.shape, 2, generator=generator, dtype=torch.float64)
    thought, entered = run(halting, wanted, states)
    (thought.output.square().sum() + 0.3 * ponder_cost(thought.pondering)).backward()
    given_chances = wanted.clone().requires_grad_()
    weights, pondering = TEXTBOOK[halting](given_chances)
    ((weights[..., None] * states).sum(dim=0).square().sum() + 0.3 * ponder_cost(pondering)).backward()
    to_logits = given_chances.grad * wanted * (1 - wanted)  # through the sigmoid
    assert_close(entered.grad[..., 0], to_logits)


@given(wanted=probabilities)
def test_the_ponder_cost_falls_with_every_probability_before_the_last_step(wanted: Tensor) -> None:
    """dρ/dp is -1 before the step at which a token halts, and 0 from it on: the number of steps has no gradient."""
    given_chances = wanted.clone().requires_grad_()
    _, pondering = halting_weights(given_chances)
    (pondering.steps + pondering.remainder).sum().backward()
    number = torch.arange(len(wanted))[:, None]
    assert_close(given_chances.grad, -(number < pondering.steps - 1).double())


def test_padding_ponders_nothing() -> None:
    wanted = chances([0.5, 0.3, 0.9], [0.5, 0.3, 0.9], [0.2, 0.2, 0.2])
    states = torch.ones(3, 3, 2, dtype=torch.float64)
    thought, _ = run("act", wanted, states, real=torch.tensor([True, False, True]))
    assert thought.pondering.steps.tolist() == [3, 0, 3]
    assert_close(thought.pondering.remainder, chances([0.2, 0, 0.6])[:, 0])
    assert not thought.output[1].any()
    assert not thought.state[1].any()
    assert_close(ponder_cost(thought.pondering), torch.tensor((3.2 + 3.6) / 2, dtype=torch.float64))


def test_the_cost_of_nothing_is_nothing() -> None:
    none = Pondering(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3))
    assert ponder_cost(none) == 0


def test_one_step_leaves_nothing_to_decide() -> None:
    with pytest.raises(SegueError, match="halting 'act' needs steps of 2 or more; found 1"):
        UniversalConfig(vocab=3, width=2, heads=1, steps=1, halting="act")
