"""Recurrent language models obey the laws of reading: their state is a memory like any other."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._pytree import tree_map

from segue.config import Reach, RecurrentConfig
from segue.errors import SegueError
from segue.nn.memory import CellMemory
from segue.nn.recurrent import CELLS, RecurrentModel
from support import VOCAB, cuts, read_in_pieces, shape, some_tokens
from support import build as build_xl

LENGTH, CARRIED = 11, Reach(memory=1)
CELL = st.sampled_from(sorted(CELLS))


def build(cell: str, layers: int = 2, **changes: object) -> RecurrentModel:
    """In float64, dropout off, with weights large enough that everything shows."""
    torch.manual_seed(0)
    config = RecurrentConfig(**{"vocab": VOCAB, "width": 6, "cell": cell, "layers": layers, **changes})
    model = RecurrentModel(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def read_alone(model: RecurrentModel, document: Tensor) -> Tensor:
    hidden, _ = model(document[None], model.start(reach=CARRIED))
    return hidden[0]


@pytest.mark.parametrize("cell", CELLS)
def test_it_is_torchs_own_cell_between_the_ends_of_a_vocabulary(cell: str) -> None:
    model, tokens = build(cell), some_tokens(3, LENGTH)
    single = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[cell]
    cells = []
    for layer in range(2):
        by_hand = single(6, 6).double()
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        by_hand.load_state_dict({name: getattr(model.cells, f"{name}_l{layer}") for name in names})
        cells.append(by_hand)
    states: list[object] = [None, None]
    hidden = []
    for token in tokens.T:
        layer_input = model.vocabulary.tables[0][token] * 6**0.5
        for layer, one in enumerate(cells):
            states[layer] = one(layer_input, states[layer])
            layer_input = states[layer][0] if cell == "lstm" else states[layer]
        hidden.append(layer_input)
    found, memory = model(tokens, model.start(lanes=3, reach=CARRIED))
    assert_close(found, torch.stack(hidden, dim=1))
    for row, state in zip(memory.rows, states, strict=True):
        assert_close(row[:, 0], torch.stack(state if cell == "lstm" else (state,), dim=1))


@given(CELL, cuts(LENGTH))
def test_where_the_seams_fall_makes_no_difference(cell: str, places: list[int]) -> None:
    model, tokens = build(cell), some_tokens(2, LENGTH)
    begin = model.start(lanes=2, reach=CARRIED)
    whole, after = model(tokens, begin)
    pieces, after_pieces = read_in_pieces(model, tokens, begin, places)
    assert_close(pieces, whole)
    assert_close(after_pieces.rows, after.rows)
    assert after_pieces.seen.tolist() == [LENGTH] * 2
    assert after.lengths.tolist() == [1, 1]


@given(st.data())
def test_documents_padding_and_seams_anywhere_in_any_lane(data: st.DataObject) -> None:
    """Every document reads as if it were alone, however lanes are cut, padded and run on."""
    model = build(data.draw(CELL))
    lanes = data.draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3))
    longest = max(map(sum, lanes))
    tokens = some_tokens(len(lanes), longest)
    starts = torch.zeros(len(lanes), longest, dtype=torch.bool)
    for lane, lengths in enumerate(lanes):
        starts[lane, torch.tensor([0, *lengths[:-1]]).cumsum(0)] = True
    total = torch.tensor([sum(lengths) for lengths in lanes])
    memory, found = model.start(lanes=len(lanes), reach=CARRIED), []
    edges = [0, *data.draw(cuts(longest) if longest > 1 else st.just([])), longest]
    for begin, end in pairwise(edges):
        here = (total - begin).clamp(0, end - begin)
        hidden, memory = model(
            tokens[:, begin:end],
            memory,
            starts=starts[:, begin:end],
            lengths=here if here.min() < end - begin else None,
        )
        found.append(hidden)
    for lane, lengths in enumerate(lanes):
        documents = tokens[lane, : sum(lengths)].split(lengths)
        wanted = torch.cat([read_alone(model, document) for document in documents])
        hidden = torch.cat(found, dim=1)[lane]
        assert_close(hidden[: sum(lengths)], wanted)
        assert not hidden[sum(lengths) :].any(), "hidden states of padding are zero"
        assert int(memory.seen[lane]) == lengths[-1]
        _, own = model(documents[-1][None], model.start(reach=CARRIED))
        assert_close([row[lane] for row in memory.rows], [row[0] for row in own.rows])


def test_a_lane_that_reads_nothing_keeps_its_state() -> None:
    model, tokens = build("lstm"), some_tokens(2, 5)
    _, memory = model(tokens, model.start(lanes=2, reach=CARRIED))
    hidden, after = model(tokens, memory, lengths=torch.tensor([0, 0]))
    assert not hidden.any()
    assert_close(after.rows, memory.rows)
    assert after.seen.tolist() == [5, 5]


def test_without_memory_segments_are_isolated() -> None:
    model, tokens = build("gru"), some_tokens(1, 8)
    memory = model.start(reach=Reach(memory=0))
    for piece in tokens.split(4, dim=1):
        hidden, memory = model(piece, memory)
        assert_close(hidden[0], read_alone(model, piece[0]))
        assert memory.size == 0


@given(CELL)
def test_a_memory_is_a_value_and_lanes_go_their_own_way(cell: str) -> None:
    model, tokens = build(cell), some_tokens(3, 9)
    _, memory = model(tokens[:, :4], model.start(lanes=3, reach=CARRIED))
    before = [row.clone() for row in memory.rows]
    whole, _ = model(tokens[:, 4:], memory)
    chosen, _ = model(tokens[[2, 0], 4:], memory.select([2, 0]))
    assert_close(chosen, whole[[2, 0]])
    fresh = model.start(lanes=1, reach=CARRIED)
    joined = CellMemory.join([memory.select([1]), fresh])
    both, _ = model(tokens[1, None, 4:].expand(2, -1), joined)
    assert_close(both, torch.stack([whole[1], read_alone(model, tokens[1, 4:])]))
    again, _ = model(tokens[:, 4:], memory)
    assert_close(again, whole, rtol=0, atol=0)
    assert_close(list(memory.rows), before, rtol=0, atol=0)


def test_it_goes_to_disk_and_comes_back_and_is_a_pytree() -> None:
    model, tokens = build("lstm"), some_tokens(2, 6)
    _, memory = model(tokens, model.start(lanes=2, reach=CARRIED))
    back = CellMemory.from_tensors(memory.tensors(), CARRIED)
    assert_close(model(tokens, back)[0], model(tokens, memory)[0], rtol=0, atol=0)
    same = tree_map(lambda tensor: tensor, memory)
    assert isinstance(same, CellMemory)
    assert same.resized(Reach(memory=0)).size == 0
    assert same.resized(Reach(memory=9)).rows[0].shape == (2, 1, 2, 6)


def test_no_gradient_crosses_the_seam() -> None:
    model, tokens = build("gru"), some_tokens(1, 6)
    _, memory = model(tokens[:, :3], model.start(reach=CARRIED))
    assert not any(row.requires_grad for row in memory.rows)
    watched = [row.requires_grad_() for row in memory.rows]
    hidden, _ = model(tokens[:, 3:], memory)
    hidden.sum().backward()
    assert all(row.grad is None for row in watched)
    assert model.cells.weight_hh_l0.grad.any()


def test_an_adaptive_vocabulary_sums_to_one() -> None:
    model = build("rnn", cutoffs=(4, 9), divisor=2)
    hidden, _ = model(some_tokens(2, 5), model.start(lanes=2, reach=CARRIED))
    assert_close(model.logprobs(hidden).exp().sum(dim=-1), torch.ones(2, 5, dtype=torch.float64))


def test_what_cannot_be_read_is_refused() -> None:
    model, tokens = build("lstm"), some_tokens(2, 4)
    with pytest.raises(SegueError, match="a recurrent model has none"):
        model.start(reach=Reach(memory=1, clamp=5))
    with pytest.raises(SegueError, match="a recurrent model has none"):
        model.start(reach=Reach(memory=1, span=5))
    with pytest.raises(SegueError, match="2 layers of rows"):
        model(tokens, build("gru").start(lanes=2, reach=CARRIED))
    with pytest.raises(SegueError, match=r"rows \(2, 6\); found 2 of \[\(8,\)\]"):
        model(tokens, build_xl(shape()).start(lanes=2, reach=CARRIED))
    with pytest.raises(SegueError, match="the memory has 1 lanes and the tokens 2"):
        model(tokens, model.start(reach=CARRIED))
