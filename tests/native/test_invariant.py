"""Evaluation that asks for it gives the same bits whatever the threads, the lanes beside it, and the cuts."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue import native
from segue.config import Reach, Reading, RecurrentConfig
from segue.errors import InputError
from segue.infer.evaluate import evaluate
from segue.infer.invariant import Invariant, evaluate_invariant
from segue.nn.frozen import FrozenXL
from segue.nn.invariant import invariant
from segue.nn.recurrent import RecurrentModel
from segue.text.corpus import Split, Stream
from segue.text.tokenizer import ByteTokenizer
from support import ENCODINGS, VOCAB, build, read_in_pieces, shape, some_tokens

pytestmark = pytest.mark.skipif(native.library() is None, reason=native.why())

LENGTH = 50
WIDE = {"heads": 3, "head_width": 20, "width": 40, "feedforward": 70, "init": 0.2}


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def nats(engine: FrozenXL, tokens: Tensor, cuts: list[int], threads: int, reach: Reach) -> Tensor:
    torch.set_num_threads(threads)
    hidden, _ = read_in_pieces(engine, tokens, engine.start(lanes=len(tokens), reach=reach), cuts)
    return engine.nats(hidden, tokens)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_no_bit_depends_on_threads_lanes_or_cuts(encoding: str, norm: str) -> None:
    """In float32. Tables of relative keys are made for each length of segment anew: they must agree too."""
    model = build(shape(encoding, **WIDE, norm=norm)).float()
    tokens, reach = some_tokens(4, LENGTH), Reach(memory=16, span=17)
    with invariant():
        whole = nats(model.frozen(), tokens, [], 1, reach)
        for lanes, cuts, threads in (
            ([0, 1, 2, 3], [], 2),
            ([2], [], 1),
            ([3, 1], [7, 8, 30], 2),
            ([1], list(range(1, LENGTH)), 1),
            ([0, 2, 1], [49], 3),
        ):
            found = nats(model.frozen(), tokens[lanes], cuts, threads, reach)
            assert torch.equal(found, whole[lanes])


def test_without_being_asked_bits_do_depend_on_cuts() -> None:
    """Else the test above could not fail."""
    model = build(shape(**WIDE)).float()
    tokens, reach = some_tokens(4, LENGTH), Reach(memory=16, span=17)
    whole = nats(model.frozen(), tokens, [], 1, reach)
    found = nats(model.frozen(), tokens, list(range(1, LENGTH)), 1, reach)
    assert not torch.equal(found, whole)
    assert_close(found, whole, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 300), st.booleans(), st.data())
@settings(max_examples=30)
def test_products_are_those_of_torch(
    rows: int, columns: int, depth: int, biased: bool, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(rows)
    left, weight = (torch.randn(size, depth, generator=generator, dtype=kind) for size in (rows, columns))
    bias = torch.randn(columns, generator=generator, dtype=kind) if biased else None
    wanted = torch.nn.functional.linear(
        left.double(), weight.double(), None if bias is None else bias.double()
    )
    with invariant():
        found = torch.nn.functional.linear(left, weight, bias)
        strided = left.T.contiguous().T @ weight.T
        nothing = torch.nn.functional.linear(left[:0], weight, bias)
    error = 1e-12 if kind == torch.float64 else 1e-4
    assert_close(found.double(), wanted, rtol=error, atol=error)
    assert_close(strided.double(), wanted - (0 if bias is None else bias.double()), rtol=error, atol=error)
    assert nothing.shape == (0, columns)


def stream() -> Stream:
    ids = some_tokens(1, 300)[0].numpy().astype(np.uint8)
    split = Split(begin=0, end=300, bytes=300, words=0, documents=2)
    return Stream(ids, np.array([0, 130]), split, ByteTokenizer())


@pytest.mark.parametrize("cutoffs", [(), (4, 9)])
def test_a_score_is_the_same_to_the_last_bit(cutoffs: tuple[int, ...]) -> None:
    model = build(shape(**WIDE, embedding=40, cutoffs=cutoffs, divisor=2 if cutoffs else 1)).float()
    text, scores = stream(), set()
    for segment, lanes, threads in ((16, 1, 1), (16, 3, 2), (7, 1, 2), (50, 2, 1)):
        torch.set_num_threads(threads)
        reading = Reading(segment=segment, reach=Reach(memory=20, span=12, clamp=9))
        scores.add(evaluate_invariant(model, text, reading, Invariant(lanes)).nats)
    assert len(scores) == 1
    assert_close(scores.pop(), evaluate(model, text, reading).nats, rtol=1e-6, atol=0)


def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recurrent = build(shape()).float(), RecurrentModel(RecurrentConfig(vocab=VOCAB, width=8))
    pinned = Reach(memory=8, span=4, pinned=2, clamp=5)
    for model, reach in (
        (recurrent, Reach(memory=1)),
        (build(shape(pattern="strided", stride=3)).float(), Reach(memory=8)),
        (plain, pinned),
    ):
        with pytest.raises(InputError, match="are for Transformer-XL with full or windowed attention"):
            evaluate_invariant(model, stream(), Reading(segment=8, reach=reach))
    reading = Reading(segment=8, reach=Reach(memory=8))
    with pytest.raises(InputError, match="this model is torch.bfloat16 on cpu"):
        evaluate_invariant(plain.to(torch.bfloat16), stream(), reading)
    monkeypatch.setenv("SEGUE_NATIVE", "0")
    with pytest.raises(InputError, match="need native code, and there is none: torch"), invariant():
        pass
