"""One token at a time: the fewest operations give the block's numbers, and are really what runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach, XLConfig
from segue.nn import stepping
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL
from support import build, shape, shapes, some_tokens


@pytest.fixture(autouse=True)
def several_are_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "WEIGHTS_FIRST", 3)


def read(model: TransformerXL, tokens: Tensor, reach: Reach, *, projected: bool) -> tuple[Tensor, Memory]:
    memory: Memory = model.start(lanes=len(tokens), reach=reach)
    parts = []
    for token in tokens.split(1, dim=1):
        hidden, memory = model(token, model.projected(memory) if projected else memory)
        parts.append(hidden)
    return torch.cat(parts, dim=1), memory


@given(shapes(["xl", "shaw"]), st.integers(1, 3), st.data())
@torch.no_grad()
def test_steps_equal_blocks(config: XLConfig, lanes: int, data: st.DataObject) -> None:
    model = build(config)
    memory = data.draw(st.integers(1, 8))
    reach = Reach(
        memory=memory,
        clamp=data.draw(st.one_of(st.none(), st.integers(1, 9))),
        span=data.draw(st.one_of(st.none(), st.integers(1, memory + 1))),
        initial=data.draw(st.sampled_from(["empty", "zeros"])),
    )
    tokens = some_tokens(lanes, 13)
    (ours, after), (theirs, _) = (read(model, tokens, reach, projected=way) for way in (True, False))
    assert_close(ours, theirs)
    # what was stepped through reads on in larger pieces, and a parent is not changed by its children
    more = some_tokens(lanes, 3)
    first, _ = model(more, after)
    assert_close(model(more[:, :1], after)[0], first[:, :1])
    assert_close(model(more, after)[0], first, rtol=0, atol=0)


def test_steps_run_where_they_may_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model, taken = build(shape()), []
    original = stepping.Step.__call__
    monkeypatch.setattr(
        stepping.Step, "__call__", lambda step, *given: (taken.append(step), original(step, *given))[1]
    )
    memory = model.start(lanes=2, reach=Reach(memory=4))
    tokens = some_tokens(2, 1)
    with torch.no_grad():
        _, memory = model(some_tokens(2, 3), model.projected(memory))
        model(tokens, memory, lengths=torch.tensor([1, 0]))
        assert not taken
        model(tokens, memory)
    assert len(taken) == len(model.blocks)
    model(tokens, memory)[0].sum().backward()  # blocks: a step has no gradient
    assert len(taken) == len(model.blocks)
    assert all(block.attention.query.weight.grad is not None for block in model.blocks)
