"""Lanes: a ring read side by side, each token in its turn, documents marked where they begin."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.errors import InputError
from segue.text.corpus import Split, Stream
from segue.text.lanes import Lanes
from segue.text.tokenizer import ByteTokenizer


def stream(size: int, starts: set[int] = frozenset({0})) -> Stream:  # type: ignore[assignment]
    """A split in which every token is its own place."""
    split = Split(begin=0, end=size, bytes=size, words=0, documents=len(starts))
    return Stream(
        np.arange(size, dtype=np.uint16), np.array(sorted(starts), dtype=np.int64), split, ByteTokenizer()
    )


@st.composite
def rings(draw: st.DrawFn) -> tuple[Lanes, set[int]]:
    lanes = draw(st.integers(1, 5))
    size = draw(st.integers(2 * lanes, 60))
    starts = {0} | draw(st.sets(st.integers(0, size - 1), max_size=6))
    return Lanes(stream(size, starts), lanes), starts


@given(ring=rings(), position=st.integers(0, 10**12), data=st.data())
def test_a_lane_holds_the_tokens_of_the_ring(
    ring: tuple[Lanes, set[int]], position: int, data: st.DataObject
) -> None:
    lanes, starts = ring
    size, length = len(lanes.stream.ids), data.draw(st.integers(1, lanes.epoch))
    segment = lanes.segment(position, length)
    for lane in range(lanes.lanes):
        places = [(lane * size // lanes.lanes + position + step) % size for step in range(length + 1)]
        assert segment.tokens[lane].tolist() == places[:-1]
        assert segment.targets[lane].tolist() == places[1:]
        marks = [False] * length if segment.starts is None else segment.starts[lane].tolist()
        assert marks == [place in starts for place in places[:-1]]
    assert segment.lengths is None
    assert segment.tokens.dtype == segment.targets.dtype == torch.int64


@given(
    lanes=st.integers(1, 5),
    epoch=st.integers(2, 20),
    length=st.integers(1, 20),
    epochs=st.integers(0, 3),
)
def test_an_epoch_reads_every_token_once(lanes: int, epoch: int, length: int, epochs: int) -> None:
    ring = Lanes(stream(lanes * epoch), lanes)
    assert ring.epoch == epoch
    read: list[int] = []
    targets: list[int] = []
    for position in range(0, epoch, length):
        segment = ring.segment(epochs * epoch + position, min(length, epoch - position))
        read += segment.tokens.flatten().tolist()
        targets += segment.targets.flatten().tolist()
    assert sorted(read) == sorted(targets) == list(range(lanes * epoch))


@given(
    size=st.integers(12, 60),
    lanes=st.integers(1, 4),
    position=st.integers(0, 200),
    lengths=st.lists(st.integers(1, 3), min_size=1),
)
def test_segments_adjoin_over_the_seams(size: int, lanes: int, position: int, lengths: list[int]) -> None:
    ring, last = Lanes(stream(size), lanes), None
    for length in lengths:
        segment = ring.segment(position, length)
        if last is not None:
            assert torch.equal(segment.tokens[:, 0], last)
        last, position = segment.targets[:, -1], position + length


def test_the_ring_closes_into_the_next_epoch_with_a_mark() -> None:
    segment = Lanes(stream(6), 1).segment(4, 4)
    assert segment.tokens.tolist() == [[4, 5, 0, 1]]
    assert segment.targets.tolist() == [[5, 0, 1, 2]]
    assert segment.starts is not None
    assert segment.starts.tolist() == [[False, False, True, False]]


def test_no_marks_where_no_document_begins_or_none_are_wanted() -> None:
    assert Lanes(stream(9), 1).segment(1, 8).starts is None
    assert Lanes(stream(9, {0, 8}), 1).segment(1, 8).starts is not None
    assert Lanes(stream(9, {0, 8}), 1, documents=False).segment(0, 9).starts is None


@given(size=st.integers(0, 12), lanes=st.integers(1, 7))
def test_too_few_tokens_are_refused(size: int, lanes: int) -> None:
    if size >= 2 * lanes:
        Lanes(stream(size), lanes).segment(0, 2)
        return
    with pytest.raises(InputError, match=f"^{size} tokens are too few for {lanes} lanes; use fewer"):
        Lanes(stream(size), lanes)


def test_segments_longer_than_a_lane_are_refused() -> None:
    ring = Lanes(stream(11), 2)
    assert ring.segment(0, 5).tokens.shape == (2, 5)
    with pytest.raises(InputError, match="a segment of 6 tokens is longer than a lane of 5; use shorter"):
        ring.segment(0, 6)
