"""Recorded attention is what the model used, and recording changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from segue.config import Reach, RecurrentSeq2SeqConfig, Seq2SeqConfig
from segue.infer.trace import TERMS, recording, recording_terms
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from support import build, shape, some_tokens


@torch.no_grad()
def test_weights_over_memory_and_segment() -> None:
    model = build(shape())
    _, memory = model(some_tokens(2, 4), model.start(lanes=2, reach=Reach(memory=4)))
    tokens = some_tokens(2, 3, 1)
    wanted, _ = model(tokens, memory)
    with recording(model) as seen:
        found, _ = model(tokens, memory)
    assert_close(found, wanted, rtol=0, atol=0)
    assert set(seen) == {"blocks.0.attention", "blocks.1.attention"}
    for weights in seen.values():
        assert weights.shape == (2, 2, 3, 7)
        assert_close(weights.sum(dim=-1), torch.ones(2, 2, 3, dtype=torch.float64))
        assert not weights[..., 0, 5:].any()  # nothing ahead
    seen.clear()
    model(tokens, memory)
    assert not seen


@torch.no_grad()
def test_what_other_threads_read_is_not_recorded() -> None:
    model = build(shape())
    memory = model.start(reach=Reach(memory=4))
    with recording(model) as seen, ThreadPoolExecutor(1) as another:
        another.submit(model, some_tokens(1, 5), memory).result()
        assert not seen
        model(some_tokens(1, 3), memory)
        another.submit(model, some_tokens(1, 5), memory).result()
    assert [tuple(weights.shape) for weights in seen.values()] == [(1, 2, 3, 3)] * 2


@torch.no_grad()
def test_weights_between_a_source_and_a_target() -> None:
    model = Seq2Seq(Seq2SeqConfig(vocab=13, width=8, heads=2, encoder_layers=1, decoder_layers=1)).eval()
    with recording(model) as seen:
        model(some_tokens(2, 3), model.start(some_tokens(2, 5), torch.tensor([5, 2])))
    shapes = {name: tuple(weights.shape) for name, weights in seen.items()}
    assert shapes == {
        "encoder.0.attention": (2, 2, 5, 5),
        "decoder.0.attention": (2, 2, 3, 3),
        "decoder.0.cross": (2, 2, 3, 5),
    }
    assert not seen["decoder.0.cross"][1, ..., 2:].any()  # no padding is looked at


@torch.no_grad()
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_weights_of_a_recurrent_decoder_to_its_source(cell: str) -> None:
    config = RecurrentSeq2SeqConfig(vocab=13, width=6, layers=2, cell=cell)
    model = RecurrentSeq2Seq(config).double().eval()
    lengths = torch.tensor([5, 2, 0])
    memory = model.start(some_tokens(3, 5), lengths)
    with recording(model) as seen, recording_terms(model) as terms:
        found, _ = model(some_tokens(3, 4), memory)
    weights = seen["attention"]
    assert not terms
    assert weights.shape == (3, 1, 4, 5)
    assert_close(weights.sum(dim=-1), torch.ones(3, 1, 4, dtype=torch.float64))
    assert not weights[1, ..., 2:].any()  # no padding is looked at
    blurred = replace(memory, source=memory.source * (torch.arange(5) == 4)[None, :, None])
    model.asking.weight.zero_()  # equal weights: the context is the mean of what is held
    with recording(model) as equal:
        assert not torch.equal(model(some_tokens(3, 4), blurred)[0], found)
    assert_close(equal["attention"][0], torch.full((1, 4, 5), 0.2, dtype=torch.float64))


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["xl", "shaw", "none"])
def test_the_terms_add_up_to_what_weights_are_made_of(encoding: str) -> None:
    model = build(shape(encoding))
    _, memory = model(some_tokens(2, 4), model.start(lanes=2, reach=Reach(memory=4)))
    with recording(model) as seen, recording_terms(model) as terms:
        model(some_tokens(2, 3, 1), memory)
    for name, weights in seen.items():
        assert list(terms[name]) == (["content"] if encoding == "none" else list(TERMS))
        assert_close(sum(terms[name].values()).softmax(dim=-1), weights)


@torch.no_grad()
def test_each_term_is_what_it_says() -> None:
    model = build(shape("xl"))
    with recording_terms(model) as terms:
        model(torch.tensor([[3, 3, 3]]), model.start(reach=Reach(memory=0)))
    first = terms["blocks.0.attention"]  # all tokens are the same, so what they hold tells nothing
    for name in ("content", "content bias"):
        assert float(first[name][0, 0, 2].std()) < 1e-12
    for name in ("content and distance", "distance bias"):
        assert_close(first[name][0, 0, 2, 1:], first[name][0, 0, 1, :2])  # distance alone decides
        assert float(first[name][0, 0, 2].std()) > 1e-3
