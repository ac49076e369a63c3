"""A decoder's steps in native code: the numbers of the model itself, whatever the shape, the lanes and the threads.

Widths reach beyond a few vectors of any processor, so that whole vectors and what is left over are both met.
"""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue import native
from segue.config import Seq2SeqConfig
from segue.errors import InputError
from segue.nn import kv_rows, native_decoder
from segue.nn.engine import Engine
from segue.nn.frozen_seq2seq import FrozenSeq2Seq, SharedMemory
from segue.nn.seq2seq import Seq2Seq

pytestmark = pytest.mark.skipif(native.library() is None, reason=native.why())

VOCAB = 23


@pytest.fixture(autouse=True)
def many_threads_for_little_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native_decoder, "WORK_OF_A_THREAD", 1)
    yield
    torch.set_num_threads(1)


def build(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    small = {
        "vocab": VOCAB,
        "width": 24,
        "heads": 2,
        "feedforward": 20,
        "encoder_layers": 1,
        "decoder_layers": 2,
    }
    model = Seq2Seq(Seq2SeqConfig(**{**small, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def words(lanes: int, size: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (lanes, size), generator=torch.Generator().manual_seed(seed))


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    return {
        "heads": heads,
        "width": heads * draw(st.integers(1, 40)) * 2,
        "feedforward": draw(st.integers(1, 90)),
        "decoder_layers": draw(st.integers(1, 3)),
        "norm": draw(st.sampled_from(["post", "pre"])),
        "final_norm": draw(st.booleans()),
        "output_bias": draw(st.booleans()),
        "decoder_span": draw(st.integers(0, 4)),
        "encoding": draw(st.sampled_from(["sinusoidal", "xl"])),
    }


def steps(reader: Seq2Seq | Engine[Any], tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
    hidden = []
    for token in tokens.split(1, dim=1):
        read, memory = reader(token, memory)
        hidden.append(read)
    return torch.cat(hidden, dim=1), memory


@given(shapes(), st.integers(1, 40), st.integers(1, 9), st.data())
@settings(max_examples=40)
@torch.no_grad()
def test_steps_are_those_of_the_model(
    changes: dict[str, Any], lanes: int, size: int, data: st.DataObject
) -> None:
    """Also behind a choice of lanes, as beams make it: in any order, some several times, some not at all."""
    model, source = build(**changes), words(lanes, size)
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, size), min_size=lanes, max_size=lanes)))
    index = data.draw(st.lists(st.integers(0, lanes - 1), min_size=1, max_size=40))
    tokens, more = words(lanes, 4, 1), words(len(index), 3, 2)
    wanted, after = steps(model, tokens, model.start(source, lengths))
    wanted_more, _ = steps(model, more, after.select(index))
    engine = model.frozen()
    begun = engine.start(source, lengths)
    assert isinstance(begun, SharedMemory)
    found, memory = steps(engine, tokens, begun)
    assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    found_more, _ = steps(engine, more, memory.select(index))
    assert_close(found_more, wanted_more, rtol=1e-10, atol=1e-10)
    single, _ = steps(model.float().frozen(), tokens, model.frozen().start(source, lengths))
    assert_close(single.double(), wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 2},
        {"window": 2, "global_tokens": 1, "encoding": "xl"},
        {"attention": "nystrom", "rank": 3},
        {"attention": "linformer", "rank": 3, "max_source": 12},
        {"source_vocab": VOCAB + 4, "encoder_layers": 3, "norm": "pre"},
    ],
)
@pytest.mark.parametrize("lengths", [None, [11, 0, 3]])
@torch.no_grad()
def test_sources_without_padding_are_those_of_the_model(
    changes: dict[str, Any], lengths: list[int] | None
) -> None:
    model, source, real = build(**changes), words(3, 11), None if lengths is None else torch.tensor(lengths)
    engine = model.frozen()
    wanted, _ = steps(model, words(3, 2, 1), model.start(source, real))
    found, memory = steps(engine, words(3, 2, 1), engine.start(source, real))
    assert isinstance(memory, SharedMemory)
    assert_close(found, wanted)
    if lengths is not None:
        assert len(memory.source.keys_values[0]) == 11 + 1 + 3


@torch.no_grad()
def test_a_memory_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two go on from one memory, and buffers are filled and left on the way."""
    monkeypatch.setattr(kv_rows, "FIRST_ROWS", 1)
    model = build()
    engine, source = model.frozen(), words(3, 5)
    _, fork = steps(engine, words(3, 2), engine.start(source))
    for seed in (1, 2, 1):
        found, _ = steps(engine, words(3, 9, seed), fork)
        wanted, _ = model(torch.cat([words(3, 2), words(3, 9, seed)], dim=1), model.start(source))
        assert_close(found, wanted[:, 2:])
    copied = pickle.loads(pickle.dumps(fork))  # noqa: S301
    assert_close(
        steps(copy.deepcopy(engine), words(3, 9, 1), copied)[0], steps(engine, words(3, 9, 1), fork)[0]
    )


@pytest.mark.parametrize("span", [0, 3])
@torch.no_grad()
def test_a_segment_behind_steps_is_read_by_the_model(span: int) -> None:
    model = build(decoder_span=span)
    engine, source, lengths = model.frozen(), words(3, 5), torch.tensor([5, 0, 2])
    tokens, index = words(3, 7), [2, 0, 2, 1]
    wanted, _ = model(tokens, model.start(source, lengths))
    _, memory = steps(engine, tokens[:, :5], engine.start(source, lengths))
    found, after = engine(tokens[index, 5:], memory.select(index))
    assert_close(found, wanted[index, 5:])
    assert not isinstance(after, SharedMemory)
    begun, _ = engine(tokens, engine.start(source, lengths))
    assert_close(begun, wanted)


def test_wrong_numbers_of_lanes_are_refused() -> None:
    engine = build().frozen()
    with pytest.raises(InputError, match="2 sentences and the target 3"):
        engine(words(3, 1), engine.start(words(2, 4)))
    with pytest.raises(InputError, match="int64 or int32"):
        engine(words(2, 1).float(), engine.start(words(2, 4)))


@pytest.mark.parametrize("lanes", [1, 2, 5, 33])
def test_the_number_of_threads_changes_no_bit_of_the_steps(lanes: int) -> None:
    """Of the source it may: torch encodes it, and on some processors its products depend on the threads."""
    engine, read, chosen = build(vocab=2000).float().frozen(), {}, {}
    source = engine.start(words(lanes, 6))
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        read[threads], _ = steps(engine, words(lanes, 3), source)
        chosen[threads] = engine.likeliest(read[1][:, -1], 3, never=0)
    assert all(torch.equal(one, read[1]) for one in read.values())
    assert all(torch.equal(*both) for one in chosen.values() for both in zip(one, chosen[1], strict=True))


@given(st.integers(1, 40), st.integers(1, 80), st.integers(2, 1000), st.integers(1, 6), st.data())
@settings(max_examples=40)
def test_the_likeliest_are_those_of_torch(
    lanes: int, width: int, vocab: int, count: int, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from([torch.float32, torch.float64]))
    generator, never = torch.Generator().manual_seed(lanes), data.draw(st.integers(-1, vocab - 1))
    count = min(count, vocab - 1)
    hidden, table = (torch.randn(size, width, generator=generator, dtype=kind) for size in (lanes, vocab))
    bias = torch.randn(vocab, generator=generator, dtype=kind) if data.draw(st.booleans()) else None
    torch.set_num_threads(data.draw(st.integers(1, 3)))
    logprobs, tokens = native_decoder.likeliest(hidden, table, bias, count, never)
    exact = torch.nn.functional.linear(
        hidden.double(), table.double(), None if bias is None else bias.double()
    )
    exact = exact.log_softmax(dim=1)
    error = 1e-10 if kind == torch.float64 else 1e-3
    assert_close(logprobs.double(), exact.gather(1, tokens), rtol=error, atol=error)
    if never >= 0:
        exact[:, never] = float("-inf")
    assert_close(logprobs.double(), exact.topk(count).values, rtol=error, atol=error)
    assert all(len(set(row)) == count and never not in row for row in tokens.tolist())


@pytest.mark.parametrize("lanes", [1, 3])
def test_equal_and_extreme_logits(lanes: int) -> None:
    hidden, table = torch.ones(lanes, 1), torch.zeros(30, 1)
    logprobs, tokens = native_decoder.likeliest(hidden, table, None, 3, 1)
    assert tokens.tolist() == [[0, 2, 3]] * lanes
    assert_close(logprobs, torch.full((lanes, 3), 1 / 30).log())
    table[7], table[20], table[21] = 1e30, -1e30, float("-inf")
    logprobs, tokens = native_decoder.likeliest(hidden, table, None, 1, -1)
    assert (tokens.tolist(), logprobs.tolist()) == ([[7]] * lanes, [[0.0]] * lanes)
    logprobs, tokens = native_decoder.likeliest(hidden, table[20:22], None, 2, 0)
    assert tokens.tolist() == [[0, 0]] * lanes  # one is left out, the other impossible
    assert logprobs.max() == float("-inf")


def test_what_is_no_number_in_one_lane_stays_there() -> None:
    hidden, table = torch.randn(3, 8), torch.randn(50, 8)
    wanted, tokens = native_decoder.likeliest(hidden, table, None, 2, 0)
    hidden[1] = float("nan")
    logprobs, others = native_decoder.likeliest(hidden, table, None, 2, 0)
    assert torch.isnan(logprobs[1]).all()
    assert (others >= 0).all()
    for lane in (0, 2):
        assert torch.equal(logprobs[lane], wanted[lane])
        assert torch.equal(others[lane], tokens[lane])


@torch.no_grad()
def test_what_native_code_cannot_read_is_read_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (build(activation="gelu"), build().to(torch.bfloat16)):
        engine = model.frozen()
        assert isinstance(engine, FrozenSeq2Seq)
        begun = engine.start(words(2, 3))
        assert not isinstance(begun, SharedMemory)
        hidden, _ = engine(words(2, 1), begun)
        values, tokens = engine.likeliest(hidden[:, 0], 2, never=3)
        logprobs = model.logprobs(hidden[:, 0]).index_fill(1, torch.tensor([3]), float("-inf"))
        assert torch.equal(values, logprobs.topk(2).values)
        assert torch.equal(logprobs.gather(1, tokens), values)
    model = build()
    engine = model.frozen()
    _, memory = engine(words(2, 1), engine.start(words(2, 3)))
    wanted, _ = engine(words(2, 1, 1), memory)
    monkeypatch.setenv("SEGUE_NATIVE", "0")  # in the midst of a text
    assert_close(engine(words(2, 1, 1), memory)[0], wanted)
    assert not isinstance(engine.start(words(2, 3)), SharedMemory)


@torch.no_grad()
def test_weights_that_moved_are_looked_up_again() -> None:
    model = build()
    engine = model.frozen()
    engine(words(2, 1), engine.start(words(2, 3)))
    for parameter in model.parameters():
        parameter.data = parameter.data * 2
    found, _ = engine(words(2, 1), engine.start(words(2, 3)))
    assert_close(found, model(words(2, 1), model.start(words(2, 3)))[0])


@torch.no_grad()
def test_weights_that_were_replaced_are_looked_up_again() -> None:
    model, other = build(), build(norm="pre").state_dict()
    engine = model.frozen()
    engine(words(2, 1), engine.start(words(2, 3)))
    fresh = {name: other[name].float() * 2 for name in model.state_dict()}
    model.load_state_dict(fresh, assign=True)
    found, _ = engine(words(2, 1), engine.start(words(2, 3)))
    wanted, _ = model(words(2, 1), model.start(words(2, 3)))
    assert_close(found, wanted)


@pytest.mark.parametrize(
    "changes", [{"decoder_layers": 1}, {"decoder_layers": 3}, {"heads": 4}, {"head_width": 3}]
)
def test_a_memory_of_another_model_is_refused(changes: dict[str, Any]) -> None:
    engine, other = build().frozen(), build(**changes).frozen()
    with pytest.raises(InputError, match=r"memory has layers, heads and head width \(2, 2, 12\)"):
        engine(words(2, 1), other.start(words(2, 3)))
    with pytest.raises(InputError, match="found .* in torch.float32"):
        engine(words(2, 1), build().float().frozen().start(words(2, 3)))


def test_the_model_itself_refuses_its_engines_memory() -> None:
    model = build()
    memory = model.frozen().start(words(2, 3))
    with pytest.raises(InputError, match="found SharedMemory, which the engine that made it reads"):
        model(words(2, 1), memory)


def test_a_shared_memory_counts_as_the_models_own() -> None:
    model = build(decoder_span=3)
    engine, source = model.frozen(), words(2, 3)
    memory, own = engine.start(source), model.start(source)
    for _ in range(5):
        assert memory.lanes == own.lanes
        assert memory.lengths.tolist() == own.lengths.tolist()
        assert memory.seen.tolist() == own.seen.tolist()
        _, memory = engine(words(2, 1), memory)
        _, own = model(words(2, 1), own)


def test_starts_are_not_ignored() -> None:
    """A decoder knows none, whoever reads."""
    engine = build().frozen()
    with pytest.raises(TypeError, match="starts"):
        engine(words(2, 1), engine.start(words(2, 3)), starts=torch.ones(2, 1, dtype=torch.bool))


@pytest.mark.parametrize("index", [[], [2], [-1], [0.5], [True, False], 1, [[0, 1]], None])
def test_lanes_are_selected_by_the_same_numbers_as_of_any_memory(index: Any) -> None:
    with pytest.raises(InputError, match="select wants numbers of lanes between 0 and 1"):
        build().frozen().start(words(2, 3)).select(index)


def test_no_lanes_and_no_tokens() -> None:
    model = build()
    for reader in (model, model.frozen()):
        with pytest.raises(InputError, match="no lanes"):
            reader.start(words(0, 3))
    hidden = torch.zeros(2, 24, dtype=torch.float64)
    assert model.frozen().likeliest(hidden[:0], 3, never=0)[1].shape == (0, 3)
    assert model.frozen().likeliest(hidden, 0, never=0)[1].shape == (2, 0)
