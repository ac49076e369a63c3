"""Dropout: as much as asked for, grown to make up for it, and the gradient of what was done."""

import pytest
import torch
from torch.testing import assert_close

from segue.nn.dropout import Dropout


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("shape", [(100_001,), (333, 301)])
def test_as_much_as_asked_for_goes_and_the_rest_grows(share: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    given = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    dropped = Dropout(share)(given)
    gone = dropped == 0
    assert gone.double().mean().item() == pytest.approx(share, abs=5e-3)
    assert_close(dropped[~gone], torch.full_like(dropped[~gone], 1 / (1 - share)), rtol=1e-4, atol=0)
    dropped.sum().backward()
    assert torch.equal(given.grad, dropped)
    for stride in (
        1,
        4,
    ):  # neighbours, and those that share a place in a random word, know nothing of each other
        both = gone.flatten()[stride:] & gone.flatten()[:-stride]
        assert both.double().mean().item() == pytest.approx(share**2, abs=5e-3)


def test_seeds_repeat_and_nothing_happens_where_nothing_should() -> None:
    given = torch.randn(50)
    dropout = Dropout(0.4)
    torch.manual_seed(1)
    first = dropout(given)
    torch.manual_seed(1)
    assert torch.equal(first, dropout(given))
    assert not torch.equal(first, dropout(given))
    assert dropout.eval()(given) is given
    assert Dropout(0.0)(given) is given
    assert not Dropout(1.0)(given).any()
    assert dropout.train()(torch.empty(0)).shape == (0,)


def test_gradients_agree_with_what_was_done() -> None:
    given = torch.randn(31, dtype=torch.float64, requires_grad=True)

    def same_drops(given: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(2)
        return Dropout(0.3)(given)

    assert torch.autograd.gradcheck(same_drops, (given,))
