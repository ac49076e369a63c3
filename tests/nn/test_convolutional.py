"""Convolutional language models: the printed sums, and the laws of reading with what the filters still see."""

import itertools
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_map

from segue.config import ConvolutionalConfig, Reach, Reading
from segue.errors import ConfigError, InputError
from segue.nn.convolution import convolve, textbook_convolution
from segue.nn.convolutional import ConvolutionalModel
from segue.nn.filter_memory import FilterMemory
from segue.nn.scan import scan, textbook_scan
from support import VOCAB, cuts, read_in_pieces, shape, some_tokens
from support import build as build_xl

LENGTH, CARRIED, ALONE = 14, Reach(memory=1), Reach(memory=0)
LAYERS = {
    "glu": [[6, 4], [5, 1], [6, 2, 2]],
    "tcn": [[5, 3], [6, 2, 4]],
    "qrnn": [[5, 3], [7, 1], [6, 2, 2]],
}
GATES = pytest.mark.parametrize("gate", LAYERS)
FIELDS = {"glu": 1 + 3 + 0 + 2, "tcn": 1 + 2 * 2 + 2 * 4}


def build(gate: str, **changes: object) -> ConvolutionalModel:
    """In float64, dropout off, with weights large enough that everything shows."""
    torch.manual_seed(0)
    config = ConvolutionalConfig(
        **{"vocab": VOCAB, "width": 6, "gate": gate, "layers": LAYERS[gate], **changes}
    )
    model = ConvolutionalModel(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


@cache
def prepared(gate: str) -> ConvolutionalModel:
    """For tests that draw many examples and change nothing."""
    return build(gate)


def alone(model: ConvolutionalModel, document: Tensor) -> Tensor:
    hidden: Tensor = model(document[None], model.start(reach=CARRIED))[0][0]
    return hidden


@given(st.data())
def test_the_fast_convolution_is_the_printed_sum(data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 4)) for _ in range(6)]
    lanes, size, inputs, outputs, kernel, dilation = sizes
    torch.manual_seed(0)
    joined = torch.randn(size + (kernel - 1) * dilation, lanes, inputs, dtype=torch.float64)
    weight = torch.randn(outputs, kernel, inputs, dtype=torch.float64)
    visible = torch.rand(kernel, size, lanes) < 0.6 if data.draw(st.booleans()) else None
    given_both = joined.requires_grad_(), weight.requires_grad_()
    textbook = textbook_convolution(joined, weight, dilation, visible)
    assert textbook.shape == (size, lanes, outputs)
    fast, slope = convolve(joined, weight, dilation, visible), torch.randn_like(textbook)
    assert_close(fast, textbook)
    assert_close(
        torch.autograd.grad(fast, given_both, slope), torch.autograd.grad(textbook, given_both, slope)
    )
    if visible is None:
        theirs = F.conv1d(joined.permute(1, 2, 0), weight.transpose(1, 2), dilation=dilation)
        assert_close(textbook, theirs.permute(2, 0, 1))


@given(st.integers(1, 6), st.integers(1, 3))
def test_the_fast_scan_is_the_printed_recurrence(size: int, lanes: int) -> None:
    torch.manual_seed(0)
    decay, fresh = torch.randn(2, size, lanes, 3, dtype=torch.float64)
    inputs = decay.requires_grad_(), fresh.requires_grad_(), torch.randn(lanes, 3).double().requires_grad_()
    fast, textbook = scan(*inputs), textbook_scan(*inputs)
    assert_close(fast, textbook)
    slope = torch.randn_like(fast)
    assert_close(torch.autograd.grad(fast, inputs, slope), torch.autograd.grad(textbook, inputs, slope))


def by_hand(model: ConvolutionalModel, tokens: Tensor) -> Tensor:
    """The printed formulas of one lane, from the beginning."""

    def convolved(part: object, hidden: Tensor) -> Tensor:
        weight, rows = part.filters, (part.kernel - 1) * part.dilation
        if part.normed:
            weight = weight / weight.norm(dim=1, keepdim=True) * part.gain[:, None]
        weight = weight.view(len(weight), part.kernel, -1)
        return textbook_convolution(F.pad(hidden, (0, 0, 0, 0, rows, 0)), weight, part.dilation) + part.bias

    hidden = model.vocabulary.embed(tokens)[:, None]
    for block in model.blocks:
        if model.config.gate == "glu":
            left, right = convolved(block.convolution, hidden).chunk(2, dim=-1)
            hidden = (block.residual(hidden) + left * right.sigmoid()) / 2**0.5
        elif model.config.gate == "tcn":
            between = convolved(block.first, hidden).relu()
            hidden = (convolved(block.second, between).relu() + block.residual(hidden)).relu()
        else:
            content, forget, out = convolved(block.convolution, hidden).chunk(3, dim=-1)
            forget = forget.sigmoid()
            states = textbook_scan(forget, (1 - forget) * content.tanh(), torch.zeros_like(forget[0]))
            hidden = out.sigmoid() * states
    return hidden[:, 0]


@GATES
def test_it_is_the_printed_formula(gate: str) -> None:
    model, tokens = build(gate), some_tokens(1, LENGTH)
    for reader in (model, model.frozen()):
        assert_close(reader(tokens, reader.start(reach=CARRIED))[0][0], by_hand(model, tokens[0]))


@GATES
@given(places=cuts(LENGTH))
def test_where_the_seams_fall_makes_no_difference(gate: str, places: list[int]) -> None:
    """Also where segments are shorter than the filters, so that part of the old rows survives."""
    for reader in (prepared(gate), prepared(gate).frozen()):
        tokens = some_tokens(2, LENGTH)
        begin = reader.start(lanes=2, reach=CARRIED)
        whole, after = reader(tokens, begin)
        pieces, pieced = read_in_pieces(reader, tokens, begin, places)
        assert_close(pieces, whole)
        assert_close(pieced.rows, after.rows)
        assert pieced.seen.tolist() == [LENGTH] * 2
        assert pieced.lengths.tolist() == after.lengths.tolist() == [after.size] * 2


@pytest.mark.parametrize("gate", FIELDS)
def test_the_receptive_field_is_the_formula(gate: str) -> None:
    """The gradient is exactly zero beyond it, and is not at its edge."""
    model, size = build(gate), 18
    field = model.config.receptive_field
    assert field == FIELDS[gate]
    vectors = model.vocabulary.embed(some_tokens(1, size)).detach().requires_grad_()
    model.vocabulary.embed = lambda _: vectors.transpose(0, 1)  # type: ignore[method-assign]
    hidden, _ = model(some_tokens(1, size), model.start(reach=CARRIED))
    (slope,) = torch.autograd.grad(hidden[0, -1].square().sum(), vectors)
    touched = slope[0].abs().sum(dim=-1) > 0
    assert touched.tolist() == _sight(model.config, size)
    assert touched[size - field], "the edge of the field is seen"
    assert not slope[0, : size - field].any()
    assert model.looks_back(Reading(segment=4, reach=CARRIED)) == field - 1
    assert model.looks_back(Reading(segment=4, reach=ALONE)) == 4


def _sight(config: ConvolutionalConfig, size: int) -> list[bool]:
    """Which tokens the last one sees: sums of one tap of each convolution. (Dilated filters may leave gaps.)"""
    back = {0}
    for _, kernel, dilation in config.layers:
        for _ in range(2 if config.gate == "tcn" else 1):
            back = {far + tap * dilation for far in back for tap in range(kernel)}
    return [size - 1 - place in back for place in range(size)]


def test_the_published_fields() -> None:
    deep = [[850, 6]] * 3 + [[850, 1]] + [[850, 5]] * 4 + [[850, 1]] + [[850, 4]] * 3 + [[1024, 4], [2048, 4]]
    assert ConvolutionalConfig(vocab=9, width=2048, layers=deep).receptive_field == 47
    assert ConvolutionalConfig(vocab=9, width=900, layers=[[900, 4]] * 8).receptive_field == 25
    for levels in range(1, 6):
        layers = [[4, 3, 2**level] for level in range(levels)]
        field = ConvolutionalConfig(vocab=9, width=4, layers=layers, gate="tcn").receptive_field
        assert field == 1 + 2 * 2 * (2**levels - 1)
    assert field == 125


@GATES
@given(data=st.data())
def test_documents_and_padding_anywhere_in_any_lane(gate: str, data: st.DataObject) -> None:
    """Every document reads as if it were alone, however lanes are cut, padded and run on."""
    model = prepared(gate)
    lanes = data.draw(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=3))
    longest = max(map(sum, lanes))
    tokens = some_tokens(len(lanes), longest)
    starts = torch.zeros(len(lanes), longest, dtype=torch.bool)
    for lane, lengths in enumerate(lanes):
        starts[lane, torch.tensor([0, *lengths[:-1]]).cumsum(0)] = True
    total = torch.tensor([sum(lengths) for lengths in lanes])
    memory, read = model.start(lanes=len(lanes), reach=CARRIED), []
    edges = [0, *data.draw(cuts(longest) if longest > 1 else st.just([])), longest]
    for begin, end in itertools.pairwise(edges):
        real = (total - begin).clamp(0, end - begin)
        hidden, memory = model(
            tokens[:, begin:end],
            memory,
            starts=starts[:, begin:end],
            lengths=real if real.min() < end - begin else None,
        )
        read.append(hidden)
    hidden = torch.cat(read, dim=1)
    for lane, lengths in enumerate(lanes):
        documents = tokens[lane, : sum(lengths)].split(lengths)
        assert_close(hidden[lane, : sum(lengths)], torch.cat([alone(model, one) for one in documents]))
        assert not hidden[lane, sum(lengths) :].any(), "hidden states of padding are zero"
        _, own = model(documents[-1][None], model.start(reach=CARRIED))
        assert_close([row[lane] for row in memory.rows], [row[0] for row in own.rows])
        assert int(memory.seen[lane]) == lengths[-1]
        assert int(memory.lengths[lane]) == min(lengths[-1], memory.size)


@GATES
def test_a_memory_is_a_value_of_constant_size(gate: str) -> None:
    model = build(gate).frozen()
    begin = model.start(lanes=2, reach=CARRIED)
    _, parent = model(some_tokens(2, 5), begin)
    before = [row.clone() for row in parent.rows]
    hidden, child = model(some_tokens(2, 3, seed=1), parent)
    assert_close(model(some_tokens(2, 3, seed=1), parent)[0], hidden, rtol=0, atol=0)
    assert_close(list(parent.rows), before, rtol=0, atol=0)
    assert [row.shape for row in child.rows] == [row.shape for row in begin.rows]
    swapped = FilterMemory.join([child.select([1]), parent.select([0]), begin.select([0])])
    more = some_tokens(3, 4, seed=2)
    both, _ = model(more, swapped)
    assert_close(both[:1], model(more[:1], child.select([1]))[0])
    assert_close(both[1:2], model(more[1:2], parent.select([0]))[0])
    assert_close(both[2:], model(more[2:], model.start(reach=CARRIED))[0])
    rebuilt = FilterMemory.from_tensors(parent.tensors(), parent.reach)
    again = tree_map(lambda tensor: tensor, rebuilt)
    assert isinstance(again, FilterMemory)
    assert_close(model(more[:2], again)[0], model(more[:2], parent)[0], rtol=0, atol=0)
    renewed = parent.renewed(torch.tensor([True, False]), begin)
    fresh, _ = model(more[:2], renewed)
    assert_close(fresh[0], model(more[:1], begin.select([0]))[0][0])
    assert_close(fresh[1], model(more[1:2], parent.select([1]))[0][0])


@GATES
def test_without_memory_segments_are_isolated(gate: str) -> None:
    model, tokens = build(gate), some_tokens(1, 8)
    memory = model.start(reach=ALONE)
    for piece in tokens.split(4, dim=1):
        hidden, memory = model(piece, memory)
        assert_close(hidden[0], alone(model, piece[0]))
        assert (memory.size, memory.lengths.tolist()) == (0, [0])
    _, carried = model(tokens, model.start(reach=CARRIED))
    forgotten = carried.resized(ALONE)
    assert forgotten.size == 0
    again, after = model(tokens, forgotten.resized(CARRIED))  # rows that have fallen off do not come back
    assert_close(again[0], alone(model, tokens[0]))
    assert after.size == carried.size


@GATES
def test_no_gradient_crosses_the_seam_and_a_lane_that_reads_nothing_keeps_its_rows(gate: str) -> None:
    model, tokens = build(gate), some_tokens(2, 5)
    _, memory = model(tokens, model.start(lanes=2, reach=CARRIED))
    assert not any(row.requires_grad for row in memory.rows)
    hidden, after = model(tokens, memory, lengths=torch.tensor([0, 0]))
    assert not hidden.any()
    assert_close(after.rows, memory.rows)
    assert after.seen.tolist() == [5, 5]


def test_the_input_may_have_a_table_of_its_own() -> None:
    model = build("glu", input_embedding=3, cutoffs=(5, 9), divisor=2, head_projection=False)
    ends = model.input_vocabulary
    assert ends is not None
    assert [tuple(table.shape) for table in ends.tables] == [(VOCAB, 3)]
    tokens = some_tokens(2, 6)
    hidden, _ = model(tokens, model.start(lanes=2, reach=CARRIED))
    assert_close(model.logprobs(hidden).exp().sum(dim=-1), torch.ones(2, 6, dtype=torch.float64))
    model.nats(hidden, tokens).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters()), "no weight is without use"


def test_fresh_filters_have_the_length_that_was_asked_for() -> None:
    """Weight norm would undo a start that is drawn for the filters alone."""
    torch.manual_seed(0)
    config = ConvolutionalConfig(vocab=9, width=64, layers=[[64, 4]] * 2)
    first = ConvolutionalModel(config).blocks[0].convolution
    assert_close(first.weight().flatten(1).norm(dim=1), torch.full((128,), 2**0.5))
    assert first.weight().detach().std().item() == pytest.approx((2 / (4 * 64)) ** 0.5, rel=0.02)


@GATES
def test_fresh_states_neither_explode_nor_vanish(gate: str) -> None:
    """Through 12 layers, of which each would double the variance if its two ways were only added."""
    torch.manual_seed(0)
    model = ConvolutionalModel(ConvolutionalConfig(vocab=VOCAB, width=48, gate=gate, layers=[[48, 2]] * 12))
    hidden, _ = model(some_tokens(4, 32), model.start(lanes=4, reach=CARRIED))
    if gate != "qrnn":  # which has no way around its gates
        assert 0.1 < hidden.detach().std().item() < 3
    assert model.nats(hidden, some_tokens(4, 32)).mean().item() < 4.5


def test_what_cannot_be_read_is_refused() -> None:
    model, tokens = build("tcn"), some_tokens(2, 4)
    for changes in ({"clamp": 5}, {"span": 5}):
        with pytest.raises(InputError, match="a convolutional model has none"):
            model.start(reach=Reach(memory=1, **changes))
    with pytest.raises(InputError, match="found a StateMemory"):
        model(tokens, build_xl(shape()).start(lanes=2, reach=CARRIED))
    with pytest.raises(InputError, match="rows of widths"):
        model(tokens, build("glu").start(lanes=2, reach=CARRIED))
    with pytest.raises(InputError, match="the memory has 1 lanes and the tokens 2"):
        model(tokens, model.start(reach=CARRIED))
    with pytest.raises(InputError, match="a ConvolutionalModel has no such engine"):
        model.frozen(int8=True)
    engine = model.frozen()
    with torch.no_grad():
        model.blocks[0].first.gain.add_(1)
    with pytest.raises(InputError, match="weights have changed"):
        engine(tokens, engine.start(lanes=2, reach=CARRIED))
    forged = model.start(lanes=2, reach=CARRIED).tensors() | {"lengths": torch.tensor([0, 999])}
    with pytest.raises(InputError, match="cannot hold 999"):
        FilterMemory.from_tensors(forged, CARRIED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 7}, "the last of the layers is 6 wide and the output 7"),
        ({"layers": []}, "layers should be at least one of"),
        ({"layers": [[6, 0]]}, "layers.0.1 should be greater than 0; found 0"),
        ({"layers": [[6, 2, 2**40]]}, "layers.0.2 should be less than or equal to 65536"),
        ({"input_embedding": 3, "tied": False}, "the output's table is its own"),
        ({"input_embedding": 3, "embedding": 4}, "the output's table is its own"),
    ],
)
def test_shapes_that_cannot_be_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build("glu", **changes)
