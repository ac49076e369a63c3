"""The fast attention against the textbook's: the same numbers and the same gradients, whatever is seen of what."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.nn import windowed
from segue.nn.attention import Attention
from segue.nn.passage import Sight
from segue.nn.positions import Relation
from support import shape


@pytest.fixture(autouse=True)
def a_few_are_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed, "FEW", 3)


def random(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


@st.composite
def sights(draw: st.DrawFn) -> tuple[int, Sight]:
    lanes, held, size = draw(st.integers(1, 3)), draw(st.integers(0, 8)), draw(st.integers(1, 8))
    span = draw(st.one_of(st.none(), st.integers(1, held + size + 2)))
    seen = Sight(held, size, span)
    if draw(st.booleans()):
        seen = Sight(held=size, size=size, causal=False)
        held = 0
    if draw(st.booleans()):
        foreign = torch.rand(lanes, 1, size, held + size) < 0.4
        foreign[..., torch.arange(size), held + torch.arange(size)] = False  # a query sees itself
        seen = replace(seen, foreign=foreign)
    return lanes, seen


@st.composite
def relations(draw: st.DrawFn, seen: Sight) -> Relation | None:
    # Causal, fewer: a clamp; more: kept from before.
    rows = draw(st.integers(0, seen.keys + 3)) if seen.causal else 2 * seen.keys - 1
    if draw(st.booleans()):
        return None
    bias = random(rows, 2) if draw(st.booleans()) else None
    return Relation(random(rows, 2, 4), random(2, 4), random(2, 4), bias)


@given(st.data())
def test_it_equals_the_textbook(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    lanes, seen = data.draw(sights())
    keys = seen.keys
    relation = data.draw(relations(seen))
    attention = Attention(shape(width=8, heads=2)).double()
    hidden, keys_values = random(seen.size, lanes, 8), random(2, keys, lanes, 2, 4)
    given = [hidden, keys_values, attention.query.weight]
    if relation is not None:
        parts = (relation.rows, relation.content_bias, relation.position_bias, relation.row_bias)
        given += [part for part in parts if part is not None]

    def results(*, fast: bool) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        if fast:
            out = attention(hidden, keys_values, relation, seen)
        else:
            query = attention.query(hidden).unflatten(-1, (2, -1))
            out = attention.out(attention.textbook(query, keys_values, relation, seen).flatten(2))
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
        return out, torch.autograd.grad((out * weight).sum(), given, materialize_grads=True)

    assert_close(results(fast=True), results(fast=False))


def test_a_short_span_makes_nothing_of_the_size_of_queries_times_keys() -> None:
    """Windowed attention is linear in the segment: nothing larger than a few queries times span + a few is made."""
    size, span, largest = 60, 4, 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result._base is None:
                largest = max(largest, result.numel())
            return result

    attention = Attention(shape(width=8, heads=2)).double()
    relation = Relation(random(size, 2, 4), random(2, 4), random(2, 4))
    keys_values = random(2, size, 1, 2, 4)
    with Watch():
        attention(random(size, 1, 8), keys_values, relation, Sight(0, size, span)).sum().backward()
    assert largest <= 2 * size * 8  # keys and values themselves are the largest there is
    assert largest < size * size


def test_dropping_weights_goes_by_the_textbook() -> None:
    config = shape(width=8, heads=2, attention_dropout=0.5)
    attention = Attention(config).double()
    torch.manual_seed(0)
    hidden, keys_values = random(5, 2, 8), random(2, 7, 2, 2, 4)
    torch.manual_seed(1)
    one = attention(hidden, keys_values, None, Sight(2, 5))
    torch.manual_seed(2)
    other = attention(hidden, keys_values, None, Sight(2, 5))
    assert not torch.equal(one, other)
    attention.eval()
    still = attention(hidden, keys_values, None, Sight(2, 5))
    assert torch.equal(still, attention(hidden, keys_values, None, Sight(2, 5)))
