"""Steps in native code: the numbers of the model in training, whatever the shape, the lanes and the threads.

Widths reach beyond a few vectors of any processor, so that whole vectors and what is left over are both met.
"""

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue import native
from segue.config import Reach, XLConfig
from segue.nn import native_step
from segue.nn.frozen import FrozenXL
from segue.nn.kv_memory import KVMemory
from segue.nn.memory import Memory
from support import ENCODINGS, build, in_torch_alone, shape, some_tokens

pytestmark = pytest.mark.skipif(native.library() is None, reason=native.why())


@pytest.fixture(autouse=True)
def many_threads_for_little_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native_step, "WORK_OF_A_THREAD", 1)
    yield
    torch.set_num_threads(1)


@st.composite
def wide_shapes(draw: st.DrawFn) -> XLConfig:
    return shape(
        draw(st.sampled_from(ENCODINGS)),
        heads=draw(st.integers(1, 4)),
        head_width=draw(st.integers(2, 80)),
        width=draw(st.integers(2, 80)),
        feedforward=draw(st.integers(1, 90)),
        layers=draw(st.integers(1, 3)),
        norm=draw(st.sampled_from(["post", "pre"])),
        biases=draw(st.sampled_from(["shared", "per-layer"])),
        layer_embeddings=draw(st.booleans()),
        **draw(st.sampled_from([{}, {"ngrams": 3, "ngram_rows": 11}])),
    )


@st.composite
def reaches(draw: st.DrawFn, config: XLConfig) -> Reach:
    clamps = st.one_of(st.none(), st.integers(1, 90)) if config.position_encoding.relative else st.none()
    memory = draw(st.integers(0, 90))
    spans = st.one_of(st.none(), st.integers(1, memory + 1))
    initial = draw(st.sampled_from(["empty", "zeros"]))
    return Reach(memory=memory, clamp=draw(clamps), span=draw(spans), initial=initial)


def steps(engine: FrozenXL, tokens: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
    hidden = []
    for token in tokens.split(1, dim=1):
        read, memory = engine(token, memory)
        hidden.append(read)
    return torch.cat(hidden, dim=1), memory


@given(wide_shapes(), st.integers(1, 5), st.data())
@settings(max_examples=40)
@torch.no_grad()
def test_steps_are_those_of_the_textbook(config: XLConfig, lanes: int, data: st.DataObject) -> None:
    model, reach = build(config), data.draw(reaches(config))
    prompt, tokens = some_tokens(lanes, data.draw(st.integers(1, 60))), some_tokens(lanes, 4, seed=1)
    starts = torch.rand(lanes, prompt.size(1), generator=torch.Generator().manual_seed(lanes)) < 0.1
    if reach.initial == "zeros":
        starts[:, 1:] = False
    exact, after = model(prompt, model.start(lanes=lanes, reach=reach), starts=starts)
    wanted = []
    for token in tokens.split(1, dim=1):
        exact, after = model(token, after)
        wanted.append(exact)
    engine, torch_engine = model.frozen(), in_torch_alone(model.frozen())
    _, memory = engine(prompt, engine.start(lanes=lanes, reach=reach), starts=starts)
    found, read = steps(engine, tokens, memory)
    assert engine._native is not None
    assert_close(found, torch.cat(wanted, dim=1), rtol=1e-10, atol=1e-10)
    theirs, read_by_torch = steps(torch_engine, tokens, memory)
    assert_close(found, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))
    for ours, others in zip(read.rows, read_by_torch.rows, strict=True):
        assert_close(
            ours, others, rtol=1e-12, atol=1e-12 * float(others.abs().max() if others.numel() else 1)
        )
    single, _ = steps(model.float().frozen(), tokens, _single(memory))
    assert_close(single.double(), found, rtol=1e-3, atol=1e-4 * float(found.abs().max()))


def _single(memory: KVMemory) -> KVMemory:
    rows = [row.float() for row in memory.rows]
    return KVMemory.from_rows(rows, memory.lengths, memory.seen, memory.reach, memory.recent)


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no fbgemm here")
@given(wide_shapes(), st.integers(1, 6))
@settings(max_examples=20)
def test_8_bit_weights_give_the_sums_of_the_torch_engine(config: XLConfig, lanes: int) -> None:
    """In one layer: in a second one, the last bit of a float may choose another step."""
    model = build(config.model_copy(update={"layers": 1, "norm": "pre"})).float()
    engine, other = model.frozen(int8=True), in_torch_alone(model.frozen(int8=True))
    _, memory = engine(some_tokens(lanes, 9), engine.start(lanes=lanes, reach=Reach(memory=9)))
    (found, after), (wanted, wanted_after) = (one(some_tokens(lanes, 1), memory) for one in (engine, other))
    assert engine._native is not None
    near = (found - wanted).abs().amax(dim=-1) < 1e-4 * wanted.abs().max()
    assert near.float().mean() >= 0.5  # but for a step that was chosen otherwise
    assert_close(found, wanted, rtol=0, atol=0.1 * float(wanted.abs().max()))
    assert_close(after.rows[0], wanted_after.rows[0], rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(lanes: int) -> None:
    engine = build(shape(heads=4, head_width=24, width=40)).frozen()
    _, memory = engine(some_tokens(lanes, 30), engine.start(lanes=lanes, reach=Reach(memory=30)))
    read = {}
    for threads in (1, 2, 3, 4, 7):
        torch.set_num_threads(threads)
        read[threads], _ = steps(engine, some_tokens(lanes, 3), memory)
    assert all(torch.equal(one, read[1]) for one in read.values())


def test_readers_in_several_threads_do_not_disturb_each_other() -> None:
    engine = build(shape(heads=2, head_width=20, width=24)).frozen()
    _, memory = engine(some_tokens(1, 12), engine.start(reach=Reach(memory=20)))
    wanted = [steps(engine, some_tokens(1, 25, seed=number), memory)[0] for number in range(4)]
    wrong: list[int] = []

    def read(number: int) -> None:
        for _ in range(5):
            found, _ = steps(engine, some_tokens(1, 25, seed=number), memory)  # a fork of the same memory
            if not torch.equal(found, wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_turned_off_it_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build(shape()).frozen()
    memory = engine.start(reach=Reach(memory=8))
    wanted, _ = steps(engine, some_tokens(1, 9), memory)
    called: list[object] = []
    monkeypatch.setattr(native_step.NativeSteps, "__call__", lambda *given: called.append(given))
    monkeypatch.setenv("SEGUE_NATIVE", "0")
    assert_close(steps(engine, some_tokens(1, 9), memory)[0], wanted)
    assert not called


def test_large_and_vanishing_scores_are_those_of_softmax() -> None:
    """Weights so large that all but one key vanish, in float32: exp never overflows."""
    model = build(shape(heads=2, head_width=16, width=16)).float()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.query.weight.mul_(300)
    engine, other = model.frozen(), in_torch_alone(model.frozen())
    _, memory = engine(some_tokens(2, 20), engine.start(lanes=2, reach=Reach(memory=20)))
    found, _ = engine(some_tokens(2, 1), memory)
    assert torch.isfinite(found).all()
    assert_close(found, other(some_tokens(2, 1), memory)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_in_one_lane_stays_there(value: float, int8: bool) -> None:
    """As in torch: that lane's outputs are no numbers, and the other lanes' are what they were."""
    if int8 and "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("no fbgemm here")
    model = build(shape(heads=2, head_width=16, width=16)).float()
    engine = model.frozen(int8=int8)
    memory = engine.start(lanes=3, reach=Reach(memory=4))
    tokens = torch.tensor([[1], [2], [3]])
    wanted, _ = engine(tokens, memory)
    with torch.no_grad():
        model.vocabulary.tables[0][2] = value
    engine = model.frozen(int8=int8)
    found, _ = engine(tokens, engine.start(lanes=3, reach=Reach(memory=4)))
    assert engine._native is not None
    assert torch.isnan(found[1]).all()
    assert torch.equal(found[[0, 2]], wanted[[0, 2]])


@pytest.mark.skipif("SEGUE_NATIVE_FLAGS" in os.environ, reason="sanitizers slow it down")
def test_what_native_code_cannot_read_is_read_by_torch() -> None:
    for config in (shape(pattern="strided", stride=3), shape()):
        engine = build(config).to(torch.bfloat16).frozen()
        engine(some_tokens(1, 1), engine.start(reach=Reach(memory=4)))
        assert engine._native is None
