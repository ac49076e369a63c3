"""Pinned rows: the first of a document stay in sight and in memory. Cuts, documents and padding: tests/laws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach
from segue.errors import ConfigError, InputError
from segue.nn.attention import attention_scores, gather
from segue.nn.layout import HOST, checked_layout
from segue.nn.mask import layer_masks
from segue.nn.memory import Memory
from segue.nn.positions import RelativeKeys
from support import ENGINES, build, engine_of, read_in_pieces, shape, some_tokens


def random(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


@given(st.integers(1, 16), st.integers(1, 6), st.integers(1, 5), st.data())
def test_it_equals_masked_textbook_attention(size: int, span: int, pinned: int, data: st.DataObject) -> None:
    torch.manual_seed(0)
    starts = torch.tensor(
        [data.draw(st.lists(st.booleans(), min_size=size, max_size=size)) for _ in range(2)]
    )
    starts[:, 0] = False
    reach = Reach(memory=8, span=span, pinned=pinned, clamp=3)
    layout = checked_layout(torch.zeros(2, size, dtype=torch.int64), starts, None)
    (mask,) = layer_masks(layout, build(shape()).start(lanes=2, reach=reach), [None], HOST)
    query, keys_values = random(size, 2, 2, 3), random(2, size, 2, 2, 3)
    rows = data.draw(st.integers(0, size))
    relative = RelativeKeys(random(rows, 2, 3), random(2, 3), random(2, 3), random(rows, 2))

    number, document = torch.arange(size), starts.cumsum(dim=1)
    place = number - torch.where(starts, number, 0).cummax(dim=1).values
    distance = number[:, None] - number
    visible = (distance < span) | (place < pinned)[:, None]
    visible = visible & (distance >= 0) & (document[:, :, None] == document[:, None])
    assert torch.equal(mask.dense(HOST).expand(2, 1, size, size)[:, 0], visible)

    scores = attention_scores(query, keys_values[0], relative) * 0.5
    weights = scores.masked_fill(~visible[:, None], float("-inf")).softmax(dim=-1)
    expected = torch.einsum("bhts,sbhd->tbhd", weights, keys_values[1])
    gathered = gather(query, keys_values, relative, mask, 0.5)
    assert_close(gathered, expected)
    leaves = [
        query,
        keys_values,
        relative.rows,
        relative.content_bias,
        relative.position_bias,
        relative.row_bias,
    ]
    arriving = torch.randn_like(expected)
    both = (torch.autograd.grad(result, leaves, arriving) for result in (gathered, expected))
    for found, wanted in zip(*both, strict=True):
        assert_close(found, wanted)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("encoding", ["xl", "shaw", "none"])
def test_the_first_rows_stay_in_sight_and_memory_stays_constant(engine: str, encoding: str) -> None:
    clamp = 6 if encoding == "xl" else None
    model = engine_of(engine, build(shape(encoding, layers=1)))
    reach = Reach(memory=4, span=5, pinned=2, clamp=clamp)

    def read(tokens: Tensor) -> tuple[Tensor, Memory]:
        memory = model.start(lanes=1, reach=reach)
        for piece in tokens.split(3, dim=1):
            hidden, memory = model(piece, memory)
            assert memory.size <= 6
        return hidden[0, -1], memory

    tokens = some_tokens(1, 40)
    last, memory = read(tokens)
    assert memory.places.tolist() == [[0, 1, 36, 37, 38, 39]]
    for place, seen in {0: True, 1: True, 2: False, 20: False, 34: False, 36: True}.items():
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % 13
        assert torch.equal(read(other)[0], last) != seen


@pytest.mark.parametrize("engine", ENGINES)
def test_more_pinned_rows_than_were_read_cost_nothing(engine: str) -> None:
    """Room for all that may be pinned would be more than there is."""
    model, tokens = engine_of(engine, build(shape(layers=1))), some_tokens(2, 24)

    def read(pinned: int) -> Tensor:
        reach = Reach(memory=4, span=5, pinned=pinned, clamp=6)
        hidden, _ = read_in_pieces(model, tokens, model.start(lanes=2, reach=reach), [7, 8, 15])
        return hidden

    assert_close(read(2**20), read(24))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_resized_memory_keeps_its_pinned_rows(engine: str) -> None:
    model = engine_of(engine, build(shape()))
    wide, narrow = (Reach(memory=size, pinned=2, clamp=4) for size in (8, 3))
    tokens = some_tokens(2, 20)
    _, memory = model(tokens, model.start(lanes=2, reach=wide))
    smaller = memory.resized(narrow)
    assert smaller.places.tolist() == [[0, 1, 17, 18, 19]] * 2
    _, expected = model(tokens, model.start(lanes=2, reach=narrow))
    assert_close(list(smaller.rows), list(expected.rows))
    grown = smaller.resized(wide)
    _, grown = model(tokens[:, :2], grown)
    assert grown.places.tolist() == [[0, 1, 17, 18, 19, 20, 21]] * 2
    with pytest.raises(InputError, match="has kept 2 pinned rows from the start"):
        memory.resized(Reach(memory=8, clamp=4))
    both = type(memory).join([memory.select([0]), memory.select([1])])
    assert_close(model(tokens[:, :3], both)[0], model(tokens[:, :3], memory)[0])
    again = type(memory).from_tensors(memory.tensors(), wide)
    assert_close(model(tokens[:, :3], again)[0], model(tokens[:, :3], memory)[0])


@pytest.mark.parametrize(
    ("settings", "reach", "complaint"),
    [
        ({}, {"clamp": None}, "encoding 'xl' needs a clamp"),
        ({"encoding": "alibi"}, {"clamp": None}, "encoding 'alibi' needs a clamp"),
        ({"encoding": "rotary"}, {"clamp": None}, "rotary"),
        ({"pattern": "strided", "stride": 2}, {}, "full or windowed attention"),
    ],
    ids=str,
)
def test_what_cannot_be_pinned_is_refused(
    settings: dict[str, object], reach: dict[str, object], complaint: str
) -> None:
    model = build(shape(**settings))
    with pytest.raises(InputError, match=complaint):
        model.start(reach=Reach(**{"memory": 4, "pinned": 2, "clamp": 4, **reach}))


def test_pinned_rows_want_an_empty_start_and_no_attention_dropout() -> None:
    with pytest.raises(ConfigError, match="pinned rows are the first of a document"):
        Reach(memory=4, pinned=2, initial="zeros")
    model = build(shape(attention_dropout=0.1)).train()
    with pytest.raises(InputError, match="attention_dropout needs all keys at once"):
        model(some_tokens(1, 9), model.start(reach=Reach(memory=4, span=2, pinned=1, clamp=4)))
