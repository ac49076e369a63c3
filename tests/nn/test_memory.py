"""What every memory answers to."""

import copy
import itertools
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from segue.config import Reach
from segue.errors import InputError
from segue.nn import kv_memory
from segue.nn.kv_memory import KVBuffer, KVMemory
from segue.nn.memory import Memory, StateMemory, last
from segue.nn.xl import TransformerXL
from support import ENGINES, build, engine_of, shape, some_tokens
from threads import stress

REACH = Reach(memory=6)


def read(model: Any, lanes: int, lengths: list[int], seed: int = 0) -> Memory:
    memory: Memory = model.start(lanes=lanes, reach=REACH)
    _, after = model(some_tokens(lanes, 5, seed), memory, lengths=torch.tensor(lengths))
    assert isinstance(after, StateMemory if isinstance(model, TransformerXL) else KVMemory)
    return after


@pytest.fixture(params=ENGINES)
def model(request: pytest.FixtureRequest) -> Any:
    """A model whose memory is hidden states, or an engine whose memory is keys and values."""
    return engine_of(request.param, build(shape()))


def test_it_tells_what_it_holds(model: Any) -> None:
    memory = read(model, 2, [3, 5])
    assert (memory.lanes, memory.lengths.tolist(), memory.seen.tolist()) == (2, [3, 5], [3, 5])
    assert memory.reach == REACH


def test_selected_lanes_read_on_like_the_ones_they_were(model: Any) -> None:
    memory, more = read(model, 3, [3, 5, 0]), some_tokens(3, 4, seed=1)
    expected, _ = model(more, memory)
    chosen = [1, 1, 0]
    hidden, _ = model(more[chosen], memory.select(chosen))
    assert_close(hidden, expected[chosen])
    again, _ = model(more[chosen], memory.select(torch.tensor(chosen)))
    assert_close(again, hidden, rtol=0, atol=0)


def test_joined_lanes_read_on_like_the_ones_they_were(model: Any) -> None:
    first, second = read(model, 1, [2]), read(model, 2, [5, 4], seed=2)
    more = some_tokens(3, 4, seed=1)
    hidden, after = model(more, first.join([first, second]))
    assert_close(hidden[:1], model(more[:1], first)[0])
    assert_close(hidden[1:], model(more[1:], second)[0])
    assert after.seen.tolist() == [6, 9, 8]


def test_it_survives_being_taken_apart(model: Any) -> None:
    memory, more = read(model, 2, [3, 5]), some_tokens(2, 4, seed=1)
    tensors = memory.tensors()
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    rebuilt = type(memory).from_tensors(tensors, memory.reach)
    leaves, plan = pytree.tree_flatten(memory)
    twin = pytree.tree_unflatten(leaves, plan)
    for other in (rebuilt, twin, memory.to("cpu")):
        assert type(other) is type(memory)
        assert_close(model(more, other)[0], model(more, memory)[0], rtol=0, atol=0)


def test_resized_keeps_the_newest(model: Any) -> None:
    memory = read(model, 2, [3, 5])
    small = memory.resized(Reach(memory=2, span=3))
    assert (small.size, small.lengths.tolist(), small.seen.tolist()) == (2, [2, 2], [3, 5])
    assert small.reach.span == 3
    assert_close(small.rows[0], memory.rows[0][:, -2:], rtol=0, atol=0)
    assert memory.resized(Reach(memory=0)).size == 0
    assert memory.resized(Reach(memory=9)).size == 5


def test_memory_never_exceeds_its_reach(model: Any) -> None:
    memory: Memory = model.start(reach=REACH)
    for step in range(20):
        _, memory = model(some_tokens(1, 4), memory)
        assert memory.size == min(6, 4 * (step + 1))
        held = {row.untyped_storage().data_ptr(): row.untyped_storage().nbytes() for row in memory.rows}
        needed = sum(row.numel() * 8 for row in memory.rows)
        # A KV buffer has room for one segment more than is being read, or for as much again; states hold nothing more.
        room = 4 + max(4, memory.size)
        spare = 0 if isinstance(memory, StateMemory) else room * needed // memory.size
        assert sum(held.values()) <= needed + spare + (6 - memory.size) * needed


def test_what_was_read_from_a_memory_never_changes_it(model: Any) -> None:
    """Rows of memories may lie in one storage: reading twice from a parent, then from a child, must not show it."""
    parent = read(model, 2, [3, 5])
    first, second, third = (some_tokens(2, 2, seed) for seed in (1, 2, 3))
    before = [row.clone() for row in parent.rows]
    with torch.no_grad():
        wanted, child = model(first, parent)
        kept = [row.clone() for row in child.rows]
        _, sibling = model(second, parent)
        again, _ = model(first, parent)
        from_child, _ = model(third, child)
        model(first, sibling)
        from_child_again, _ = model(third, child)
    assert_close(again, wanted, rtol=0, atol=0)
    assert_close(from_child_again, from_child, rtol=0, atol=0)
    assert_close(list(parent.rows), before, rtol=0, atol=0)
    assert_close(list(child.rows), kept, rtol=0, atol=0)


@torch.no_grad()
def test_reading_on_writes_behind_what_is_there() -> None:
    """While there is room in the buffer, a memory grows without being copied."""
    model = build(shape()).frozen()
    memory: Memory = model.start(reach=Reach(memory=40))
    places = set()
    for _ in range(64):
        _, memory = model(some_tokens(1, 1), memory)
        places.add(memory.rows[0].untyped_storage().data_ptr())
    assert len(places) < 20


def read_on_after_inference_mode() -> None:
    model, token, more = build(shape()), some_tokens(1, 1), some_tokens(1, 2)
    engine = model.frozen()
    with torch.inference_mode():
        _, memory = engine(more, engine.start(reach=REACH))
        wanted = engine(token, memory)[0].tolist()
    with torch.no_grad():
        assert engine(token, memory)[0].tolist() == wanted
    assert engine(token, memory)[0].tolist() == wanted
    hidden, _ = model(more, model.start(reach=REACH))
    model.nats(hidden, more).sum().backward()


def test_what_was_read_in_inference_mode_reads_on_in_any() -> None:
    """In a thread of its own, which has no room for scores yet: what is kept must serve all modes."""
    with ThreadPoolExecutor(1) as fresh:
        fresh.submit(read_on_after_inference_mode).result()


def test_what_cannot_be_done_is_refused(model: Any) -> None:
    memory = read(model, 2, [3, 5])
    for wrong in ([2], [-1], [], [True, False], [0.5]):
        with pytest.raises(InputError, match="numbers of lanes between 0 and 1"):
            memory.select(wrong)
    with pytest.raises(InputError, match="one kind and reach"):
        memory.join([memory, memory.resized(Reach(memory=2))])
    with pytest.raises(InputError, match="at least one"):
        memory.join([])
    small = build(shape(width=4, heads=1))
    other = read(small if isinstance(model, TransformerXL) else small.frozen(), 1, [3])
    with pytest.raises(InputError, match="memories of one model"):
        memory.join([memory, other])


def test_the_newest_none_is_nothing() -> None:
    assert last(torch.ones(1, 3, 2), 0).shape == (1, 0, 2)


def room_taken(parent: KVMemory, moment: int) -> tuple[KVMemory, KVMemory | None]:
    """Room taken by one reader, and by another that cuts in at this moment (counted in opcodes), if it may."""
    passed, other = itertools.count(), []

    def watch(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        if frame.f_code.co_filename != kv_memory.__file__:
            return None
        if event == "opcode" and next(passed) == moment and not KVBuffer.taking.locked():
            sys.settrace(None)
            other.append(parent.with_slots(1))
        return watch

    usual = sys.gettrace()
    sys.settrace(watch)
    try:
        first = parent.with_slots(1)
    finally:
        sys.settrace(usual)
    return first, other[0] if other else None


@torch.no_grad()
def test_readers_that_cut_in_on_each_other_never_share_room() -> None:
    """What threads may do, step by step: at any moment of taking room, another reader does so on the same memory."""
    engine, met = build(shape()).frozen(), 0
    for moment in range(150):
        _, parent = engine(some_tokens(1, 3), engine.start(reach=REACH))
        rows = [row.clone() for row in parent.rows]
        first, second = room_taken(parent, moment)
        if second is None:
            continue
        met += 1
        assert first.parts[0].buffer is not second.parts[0].buffer
        for taken in (first, second):
            assert_close(list(taken.rows), rows, rtol=0, atol=0)
    assert met > 20


def test_forks_read_by_several_threads_are_those_of_one() -> None:
    assert stress(rounds=4) == 0


@torch.no_grad()
def test_copies_of_a_memory_read_like_it(model: Any) -> None:
    more = some_tokens(2, 1, seed=1)
    _, memory = model(more, read(model, 2, [5, 5]))
    wanted, _ = model(more, memory)
    for twin in (copy.copy(memory), copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):  # noqa: S301
        assert_close(model(more, twin)[0], wanted, rtol=0, atol=0)
    assert_close(model(more, memory)[0], wanted, rtol=0, atol=0)
