"""The laws of reading: where seams, documents and padding fall makes no difference to what a token sees."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach, XLConfig
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL
from support import ENGINES, build, cuts, engine_of, read_in_pieces, shapes, some_tokens, whole_reaches

LENGTH = 14

ENGINE = pytest.mark.parametrize("engine", ENGINES)


@ENGINE
@given(st.data())
def test_where_the_seams_fall_makes_no_difference(engine: str, data: st.DataObject) -> None:
    config = data.draw(shapes())
    reach = data.draw(whole_reaches(config, LENGTH))
    model, tokens = engine_of(engine, build(config)), some_tokens(2, LENGTH)
    begin = model.start(lanes=2, reach=reach)
    whole, after_whole = model(tokens, begin)
    pieces, after_pieces = read_in_pieces(model, tokens, begin, data.draw(cuts(LENGTH)))
    assert_close(pieces, whole)
    assert_close(after_pieces.rows, after_whole.rows)
    assert after_pieces.seen.tolist() == [LENGTH] * 2


@ENGINE
@given(st.data())
def test_one_token_at_a_time_equals_one_segment_at_once(engine: str, data: st.DataObject) -> None:
    config = data.draw(shapes())
    reach = data.draw(whole_reaches(config, LENGTH))
    model, tokens = engine_of(engine, build(config)), some_tokens(2, LENGTH)
    memory = model.start(lanes=2, reach=reach)
    whole, _ = model(tokens, memory)
    singly, _ = read_in_pieces(model, tokens, memory, range(1, LENGTH))
    assert_close(singly, whole)


@ENGINE
@given(st.data())
def test_a_later_token_never_changes_an_earlier_output(engine: str, data: st.DataObject) -> None:
    config = data.draw(shapes())
    reach = data.draw(whole_reaches(config, LENGTH))
    model, tokens = engine_of(engine, build(config)), some_tokens(1, LENGTH)
    memory = model.start(reach=reach)
    change = data.draw(st.integers(1, LENGTH - 1))
    other = tokens.clone()
    other[:, change:] = (other[:, change:] + 1) % config.vocab
    first, _ = model(tokens, memory)
    second, _ = model(other, memory)
    assert_close(second[:, :change], first[:, :change], rtol=0, atol=0)
    assert not torch.allclose(second[:, change:], first[:, change:])


@given(st.data())
def test_memory_as_keys_and_values_reads_the_same(data: st.DataObject) -> None:
    config = data.draw(shapes())
    memory_length = data.draw(st.integers(0, LENGTH))
    reach = Reach(memory=memory_length, initial=data.draw(st.sampled_from(["empty", "zeros"])))
    model, tokens = build(config), some_tokens(2, LENGTH)
    places = data.draw(cuts(LENGTH))
    states: Memory = model.start(lanes=2, reach=reach)
    switch = data.draw(st.integers(0, len(places)))  # where the reader begins to remember keys and values
    frozen = model.frozen()
    projected = frozen.project(states)
    for number, piece in enumerate(torch.tensor_split(tokens, places, dim=1)):
        projected = frozen.project(states) if number == switch else projected
        expected, states = model(piece, states)
        hidden, projected = frozen(piece, projected)
        assert_close(hidden, expected)
        assert_close(frozen.project(states).rows, projected.rows)


@ENGINE
@given(st.data())
def test_a_memory_is_a_value(engine: str, data: st.DataObject) -> None:
    config = data.draw(shapes())
    model, tokens = engine_of(engine, build(config)), some_tokens(2, LENGTH)
    begin: Memory = model.start(lanes=2, reach=Reach(memory=data.draw(st.integers(0, LENGTH))))
    _, memory = model(tokens[:, :6], begin)
    before = [row.clone() for row in memory.rows]
    first, child = model(tokens[:, 6:9], memory)
    model(tokens[:, 9:], child)
    again, _ = model(tokens[:, 6:9], memory)
    assert_close(again, first, rtol=0, atol=0)
    assert_close(list(memory.rows), before, rtol=0, atol=0)


@given(st.data())
def test_no_gradient_reaches_memory_and_keys_and_values_receive_theirs(data: st.DataObject) -> None:
    config = data.draw(shapes())
    model, tokens = build(config), some_tokens(1, 9)
    _, memory = model(tokens[:, :4], model.start(reach=Reach(memory=4)))
    assert not any(row.requires_grad for row in memory.rows)
    watched = [row.requires_grad_() for row in memory.rows]
    hidden, _ = model(tokens[:, 4:], memory)
    model.nats(hidden[:, :1], tokens[:, 5:6]).sum().backward()
    assert all(row.grad is None for row in watched)
    through = model.blocks[0].attention.key_value.weight.grad.clone()
    model.zero_grad()
    alone, _ = model(tokens[:, 4:], model.start(reach=Reach(memory=4)))
    model.nats(alone[:, :1], tokens[:, 5:6]).sum().backward()
    assert not torch.allclose(through, model.blocks[0].attention.key_value.weight.grad)


def read_alone(model: TransformerXL, document: Tensor, reach: Reach) -> Tensor:
    hidden, _ = model(document[None], model.start(reach=reach))
    whole: Tensor = hidden[0]
    return whole


@st.composite
def documents(draw: st.DrawFn) -> list[list[int]]:
    """For each of 1 to 3 lanes, the lengths of its documents."""
    return draw(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3))


@ENGINE
@given(st.data())
def test_documents_padding_and_seams_anywhere_in_any_lane(engine: str, data: st.DataObject) -> None:
    """Every document reads as if it were alone, however lanes are cut, padded and run on."""
    config = data.draw(shapes())
    lanes = data.draw(documents())
    longest = max(sum(lengths) for lengths in lanes)
    reach = data.draw(whole_reaches(config, longest).filter(lambda reach: reach.initial == "empty"))
    model = build(config)
    tokens = some_tokens(len(lanes), longest)
    expected = [
        torch.cat([read_alone(model, part, reach) for part in row[: sum(lengths)].split(lengths)])
        for row, lengths in zip(tokens, lanes, strict=True)
    ]
    reader = engine_of(engine, model)
    read = _read_ragged(data, reader, tokens, lanes, reader.start(lanes=len(lanes), reach=reach))
    for found, wanted in zip(read, expected, strict=True):
        assert_close(found, wanted)


def _read_ragged(
    data: st.DataObject, model: Any, tokens: Tensor, lanes: list[list[int]], memory: Memory
) -> list[Tensor]:
    """Read every lane to its end, a different number of tokens from each lane at each call."""
    starts = [_start_places(lengths) for lengths in lanes]
    at, ends = [0] * len(lanes), [sum(lengths) for lengths in lanes]
    read: list[list[Tensor]] = [[] for _ in lanes]
    while at != ends:
        size = data.draw(st.integers(1, 7))
        takes = [
            data.draw(st.integers(0, min(size, end - place))) for place, end in zip(at, ends, strict=True)
        ]
        if not any(takes):
            takes = [min(size, end - place) for place, end in zip(at, ends, strict=True)]
        segment, begins = (
            torch.zeros(len(lanes), size, dtype=torch.int64),
            torch.zeros(len(lanes), size).bool(),
        )
        for lane, (place, take) in enumerate(zip(at, takes, strict=True)):
            segment[lane, :take] = tokens[lane, place : place + take]
            begins[lane, :take] = torch.tensor([spot in starts[lane] for spot in range(place, place + take)])
        full = all(take == size for take in takes)
        hidden, memory = model(
            segment,
            memory,
            starts=begins if begins.any() or data.draw(st.booleans()) else None,
            lengths=None if full else torch.tensor(takes),
        )
        for lane, take in enumerate(takes):
            read[lane].append(hidden[lane, :take])
            assert not hidden[lane, take:].any()  # padding is zero, never NaN
        at = [place + take for place, take in zip(at, takes, strict=True)]
        assert (memory.lengths <= memory.seen).all()
    return [torch.cat(pieces) for pieces in read]


def _start_places(lengths: list[int]) -> set[int]:
    """Where documents begin after the first, which a fresh memory begins anyway."""
    places, at = set(), 0
    for length in lengths[:-1]:
        at += length
        places.add(at)
    return places


@ENGINE
@given(st.data())
def test_a_memory_of_zeros_begins_anew_at_a_segments_edge(engine: str, data: st.DataObject) -> None:
    config = data.draw(shapes())
    reach = Reach(memory=data.draw(st.integers(0, 6)), initial="zeros")
    model, tokens = engine_of(engine, build(config)), some_tokens(2, 8)
    begin: Memory = model.start(lanes=2, reach=reach)
    _, memory = model(tokens[:, :5], begin)
    starts = torch.tensor([[False] * 3, [True, False, False]])
    hidden, after = model(tokens[:, 5:], memory, starts=starts)
    kept, _ = model(tokens[:, 5:], memory)
    fresh, _ = model(tokens[:, 5:], begin)
    assert_close(hidden, torch.stack([kept[0], fresh[1]]))
    assert after.seen.tolist() == [8, 3]


@ENGINE
@given(st.data())
def test_segment_memory_and_span_may_change_between_calls(engine: str, data: st.DataObject) -> None:
    """What was forgotten aside, a resized memory reads like one that had this reach from the beginning."""
    config: XLConfig = data.draw(shapes())
    model, tokens = engine_of(engine, build(config)), some_tokens(1, LENGTH)
    size = data.draw(st.integers(0, 8))
    _, wide = model(tokens[:, :8], model.start(reach=Reach(memory=8)))
    _, narrow = model(tokens[:, :8], model.start(reach=Reach(memory=size)))
    hidden, _ = model(tokens[:, 8:], wide.resized(Reach(memory=size, span=3)))
    expected, _ = model(tokens[:, 8:], narrow.resized(Reach(memory=size, span=3)))
    assert_close(hidden, expected)
