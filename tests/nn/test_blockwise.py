"""The fast attention against the textbook's: the same numbers and the same gradients, whatever is seen of what."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue import native
from segue.config import Reach
from segue.footprint import Largest
from segue.nn import blockwise, scratch
from segue.nn.attention import Attention, textbook, textbook_by_blocks
from segue.nn.mask import AttentionMask
from segue.nn.positions import RelativeKeys
from support import build, shape


@pytest.fixture(autouse=True, params=[None, 0, 2**20], ids=["native", "computed again", "kept"])
def a_few_are_three(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.param is None:
        if native.library() is None:
            pytest.skip(native.why())
        return
    monkeypatch.setenv(native.SWITCH, "0")
    monkeypatch.setattr(blockwise, "QUERY_BLOCK", 3)
    monkeypatch.setattr(blockwise, "SAVED_WEIGHTS", request.param)


def random(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


@st.composite
def sights(draw: st.DrawFn) -> tuple[int, AttentionMask]:
    lanes, held, size = draw(st.integers(1, 3)), draw(st.integers(0, 8)), draw(st.integers(1, 8))
    span = draw(st.one_of(st.none(), st.integers(1, held + size + 2)))
    seen = AttentionMask(held, size, span)
    if draw(st.booleans()):
        seen = AttentionMask(held=size, size=size, causal=False)
        held = 0
    if draw(st.booleans()) and seen.causal:
        own = torch.randint(0, 2, (lanes, size), dtype=torch.int64).cumsum(dim=1)
        seen = replace(seen, documents=torch.cat([torch.randint(-1, 1, (lanes, held)), own], dim=1))
    elif draw(st.booleans()):
        padding = torch.rand(lanes, 1, size, held + size) < 0.4
        padding[..., torch.arange(size), held + torch.arange(size)] = False  # a query sees itself
        seen = replace(seen, padding=padding)
    return lanes, seen


@st.composite
def relations(draw: st.DrawFn, seen: AttentionMask) -> RelativeKeys | None:
    # Causal, fewer: a clamp; more: kept from before.
    rows = draw(st.integers(0, seen.keys + 3)) if seen.causal else 2 * seen.keys - 1
    if draw(st.booleans()):
        return None
    bias = random(rows, 2) if draw(st.booleans()) else None
    return RelativeKeys(random(rows, 2, 4), random(2, 4), random(2, 4), bias)


@given(st.data())
def test_it_equals_the_textbook(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    lanes, seen = data.draw(sights())
    keys = seen.keys
    relative = data.draw(relations(seen))
    attention = Attention(shape(width=8, heads=2)).double()
    hidden, keys_values = random(seen.size, lanes, 8), random(2, keys, lanes, 2, 4)
    given = [hidden, keys_values, attention.query.weight]
    if relative is not None:
        parts = (
            relative.rows,
            relative.content_bias,
            relative.position_bias,
            relative.row_bias,
        )
        given += [part for part in parts if part is not None]

    def results(*, fast: bool) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        if fast:
            out = attention(hidden, keys_values, relative, seen)
        else:
            query = attention.query(hidden).unflatten(-1, (2, -1))
            out = attention.out(textbook(query, keys_values, relative, seen, attention.scale).flatten(2))
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
        return out, torch.autograd.grad((out * weight).sum(), given, materialize_grads=True)

    assert_close(results(fast=True), results(fast=False))


def largest_made(length: int, memory: int, *, span: int | None = 5, **changes: object) -> int:
    """By reading and learning, with documents that begin within the segment."""
    model = build(shape(width=4, heads=1, feedforward=4, vocab=3, **changes)).train()
    tokens = torch.arange(2 * length).view(2, length) % 3
    reach = Reach(memory=memory, span=span)
    _, past = model(tokens[:, : max(1, memory)], model.start(lanes=2, reach=reach))
    starts = torch.zeros(2, length, dtype=torch.bool)
    starts[0, length // 2] = starts[1, 7] = True
    scratch.BUFFERS.__dict__.clear()  # room that was made before would not be seen
    with Largest() as largest:
        hidden, _ = model(tokens, past, starts=starts)
        model.nats(hidden, tokens).sum().backward()
    return largest.elements


@pytest.mark.parametrize("changes", [{}, {"encoding": "shaw"}, {"attention_dropout": 0.1}], ids=str)
@pytest.mark.parametrize("memory", [0, 4])
def test_a_short_span_makes_attention_linear(memory: int, changes: dict[str, object]) -> None:
    """No tensor anywhere has as many elements as there are pairs of tokens: twice the text, twice the room."""
    short, long = (largest_made(length, memory, **changes) for length in (100, 200))
    assert long < 2.1 * short
    assert long < 200 * 200 / 4


def test_without_a_span_pairs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the counting sees what it should: the textbook's weights are as many as pairs."""
    monkeypatch.setenv(native.SWITCH, "0")
    assert largest_made(100, 0, span=None, attention_dropout=0.1) >= 2 * 100 * 100


def test_a_few_at_a_time_the_textbook_gives_the_same() -> None:
    attention = Attention(shape(width=8, heads=2)).double()
    documents = torch.tensor([[-1, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2], [0] * 11])
    for span in (1, 4, 30):
        seen = AttentionMask(3, 8, span, documents)
        relative = RelativeKeys(random(9, 2, 4), random(2, 4), random(2, 4), random(9, 2))
        query, keys_values = random(8, 2, 2, 4), random(2, 11, 2, 2, 4)
        few = textbook_by_blocks(query, keys_values, relative, seen, attention.scale)
        assert_close(few, textbook(query, keys_values, relative, seen, attention.scale))


def test_dropping_weights_draws_anew_in_training_alone() -> None:
    config = shape(width=8, heads=2, attention_dropout=0.5)
    attention = Attention(config).double()
    torch.manual_seed(0)
    hidden, keys_values = random(5, 2, 8), random(2, 7, 2, 2, 4)
    torch.manual_seed(1)
    one = attention(hidden, keys_values, None, AttentionMask(2, 5))
    torch.manual_seed(2)
    other = attention(hidden, keys_values, None, AttentionMask(2, 5))
    assert not torch.equal(one, other)
    attention.eval()
    still = attention(hidden, keys_values, None, AttentionMask(2, 5))
    assert torch.equal(still, attention(hidden, keys_values, None, AttentionMask(2, 5)))
