"""Evaluation: every token but the first once; how it is read side by side changes nothing."""

import json
import math
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.config import Reach, Reading
from segue.errors import SegueError
from segue.infer.adapt import (
    Cache,
    Dynamic,
    cache_logprobs,
    evaluate_cached,
    evaluate_caches,
    evaluate_dynamic,
    mean_squares,
)
from segue.infer.evaluate import evaluate, evaluate_sliding, scored, segments
from segue.interop import reference
from segue.progress import silent
from segue.text.corpus import Corpus, Split, Stream, open_corpus
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import Piece, Source
from segue.text.tokenizer import ByteTokenizer
from support import build, shape, shapes, some_tokens, whole_reaches
from test_references import recording


def stream_of(tokens: list[int], starts: list[int] | None = None) -> Stream:
    split = Split(begin=0, end=len(tokens), bytes=len(tokens), words=0, documents=1)
    return Stream(np.array(tokens, dtype=np.uint8), np.array([0, *(starts or [])]), split, ByteTokenizer())


def some_stream(length: int, starts: list[int] | None = None) -> Stream:
    return stream_of(some_tokens(1, length)[0].tolist(), starts)


@given(st.data())
def test_lanes_change_nothing(data: st.DataObject) -> None:
    knows_no_beginning = shapes(["xl", "shaw", "none"]).filter(lambda config: config.pattern != "fixed")
    config = data.draw(knows_no_beginning)
    length = data.draw(st.integers(2, 60))
    starts = data.draw(st.lists(st.integers(1, length - 1), unique=True, max_size=3).map(sorted))
    reach = Reach(
        memory=data.draw(st.integers(0, 6)), span=data.draw(st.one_of(st.none(), st.integers(1, 5)))
    )
    reading = Reading(segment=data.draw(st.integers(1, 7)), reach=reach)
    model, stream = build(config), some_stream(length, starts)
    one = evaluate(model, stream, reading)
    assert one.tokens == length - 1
    several = evaluate(model, stream, reading, lanes=data.draw(st.integers(2, 5)))
    assert several.tokens == one.tokens
    assert several.nats == pytest.approx(one.nats, rel=1e-9)


@given(st.data())
def test_several_segments_at_once_change_nothing_where_seams_do_not_show(data: st.DataObject) -> None:
    config = data.draw(shapes())
    starts = data.draw(st.lists(st.integers(1, 39), unique=True, max_size=3).map(sorted))
    span = data.draw(st.integers(1, 6))
    initial = data.draw(st.sampled_from(["empty", "zeros"]))
    reach = Reach(memory=data.draw(st.integers(span - 1, 8)), span=span, initial=initial)
    reading = Reading(segment=data.draw(st.integers(1, 7)), reach=reach)
    model, stream, found = build(config), some_stream(40, starts), []
    for chunk in (1, 16):  # fewer than a segment: one by one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("segue.config.reading.CHUNK_TOKENS", chunk)
            assert reading.chunk == max(1, chunk // reading.segment) * reading.segment
            found.append(evaluate(model, stream, reading).nats)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_where_seams_show_segments_are_read_one_by_one() -> None:
    for reach in (
        Reach(memory=8),
        Reach(memory=3, span=5),
        Reach(memory=0, span=1, positions="restart"),
    ):
        assert Reading(segment=4, reach=reach).chunk == 4


@given(st.data())
def test_the_score_is_the_sum_over_the_stream_read_at_once(data: st.DataObject) -> None:
    config = data.draw(shapes())
    reach = data.draw(whole_reaches(config, 20))
    model, stream = build(config), some_stream(20)
    tokens = torch.from_numpy(stream.ids.astype(np.int64))[None]
    hidden, _ = model(tokens[:, :-1], model.start(reach=reach))
    score = evaluate(model, stream, Reading(segment=data.draw(st.integers(1, 25)), reach=reach))
    assert score.nats == pytest.approx(model.nats(hidden, tokens[:, 1:]).sum().item(), rel=1e-9)
    assert (score.tokens, score.bytes) == (19, 19)


def test_documents_are_read_apart() -> None:
    model = build(shape())
    parts = [some_stream(9).ids.tolist(), some_tokens(1, 7, seed=3)[0].tolist()]
    reading = Reading(segment=4, reach=Reach(memory=20))
    alone = [evaluate(model, stream_of(part), reading).nats for part in parts]
    together = evaluate(model, stream_of(parts[0] + parts[1], [9]), reading)
    seam, _ = model(torch.tensor([parts[0]]), model.start(reach=Reach(memory=20)))
    across = model.nats(
        seam[:, -1:], torch.tensor([[parts[1][0]]])
    ).item()  # the next one's first is predicted here
    assert together.nats == pytest.approx(sum(alone) + across)


def test_sliding_by_one_gives_every_token_its_whole_window() -> None:
    model, stream = build(shape()), some_stream(15)
    tokens = torch.from_numpy(stream.ids.astype(np.int64))
    expected = 0.0
    for place in range(14):
        window = tokens[max(0, place - 4) : place + 1][None]
        hidden, _ = model(window, model.start(reach=Reach(memory=0)))
        expected += model.nats(hidden[:, -1:], tokens[None, place + 1 : place + 2]).item()
    assert evaluate_sliding(
        model, stream, Reading(segment=5, reach=Reach(memory=9)), batch=4
    ).nats == pytest.approx(expected)


def test_sliding_over_everything_equals_memory_for_everything() -> None:
    model, stream = build(shape()), some_stream(15)
    memory = evaluate(model, stream, Reading(segment=3, reach=Reach(memory=15)))
    whole = Reading(segment=15, reach=Reach(memory=0))
    assert evaluate_sliding(model, stream, whole).nats == pytest.approx(memory.nats)


@pytest.mark.parametrize("clamp", [None, 3])
def test_sliding_stays_within_the_document_and_keeps_the_clamp(clamp: int | None) -> None:
    model, stream = build(shape()), some_stream(25, [7, 16])
    memory = evaluate(model, stream, Reading(segment=3, reach=Reach(memory=25, clamp=clamp)))
    sliding = evaluate_sliding(model, stream, Reading(segment=25, reach=Reach(memory=9, clamp=clamp)))
    assert sliding.nats == pytest.approx(memory.nats)


@pytest.mark.parametrize("name", ["xl-postnorm", "xl-adaptive-div2", "shaw-learned", "absolute-per-layer"])
def test_the_references_losses(name: str) -> None:
    """`segue eval` on the published weights gives the published losses."""
    tensors, weights, config = recording(name)
    model, _ = reference.build(weights, config)
    for lane, tokens in enumerate(tensors["tokens"]):
        losses = [tensors[f"segment{number}.loss"][lane] for number in range(len(config["segment_lengths"]))]
        found = evaluate(model.eval(), stream_of(tokens.tolist()), reference.reading(config))
        assert found.nats == pytest.approx(torch.cat(losses).sum().item(), abs=1e-8)


def test_a_limit_scores_the_beginning() -> None:
    model, stream = build(shape()), some_stream(30)
    reading = Reading(segment=4, reach=Reach(memory=8))
    first = evaluate(model, stream, reading, limit=10)
    assert first.tokens == 10
    assert first.nats == pytest.approx(evaluate(model, stream_of(stream.ids[:11].tolist()), reading).nats)
    with pytest.raises(SegueError, match="two are needed"):
        evaluate(model, some_stream(1), reading)
    with pytest.raises(SegueError, match="read it in one lane"):
        evaluate(build(shape("sinusoidal")), stream, reading, lanes=2)
    for limit in (0, -1):
        with pytest.raises(SegueError, match="at least 1 token"):
            evaluate(model, stream, reading, limit=limit)


def test_lanes_without_anything_to_read_are_not_made() -> None:
    model, stream = build(shape()), some_stream(30)
    reading = Reading(segment=4, reach=Reach(memory=8))
    found = evaluate(model, stream, reading, lanes=10**9)
    assert found.nats == pytest.approx(evaluate(model, stream, reading).nats)


def corpus_of(folder: Path, text: str, **settings: object) -> Corpus:
    source = Source("it", {"train": lambda: iter([Piece(text.encode(), begins=True)])})
    prepare(source, folder, PrepareConfig(**{"valid": 0, "test": 0, **settings}), silent)
    return open_corpus(folder)


SMALL = Reading(segment=8, reach=Reach(memory=8))


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_a_part_has_the_bytes_of_the_original_text(tokenizer: str, tmp_path: Path) -> None:
    text = "the café in 東京 😀\n\tthe  sea\r\n" * 9  # characters of one to four bytes
    corpus = corpus_of(tmp_path / "corpus", text, tokenizer=tokenizer, size=260)
    stream, encoded = corpus.stream("train"), text.encode()
    assert corpus.header.lossless
    sizes = [scored(stream, 1.0, tokens).bytes for tokens in range(1, len(stream.ids))]
    assert sizes[-1] == len(encoded) - stream.tokenizer.sizes[stream.ids[0]]
    assert all(before < after for before, after in pairwise(sizes))
    for place in range(1, len(stream.ids)):  # where a token ends with a character, so do the bytes
        before = stream.tokenizer.decode(stream.ids[: place + 1])
        if encoded.startswith(before):
            assert sizes[place - 1] == len(before) - stream.tokenizer.sizes[stream.ids[0]]


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [("words", "the sea\nthe  sea\n" * 9), ("characters", "the sea the sea the sea é")],
)
def test_what_loses_text_has_no_bits_per_byte(tokenizer: str, text: str, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", text, tokenizer=tokenizer, minimum=2)
    assert not corpus.header.lossless
    model, stream = build(shape(vocab=corpus.header.vocab)), corpus.stream("train")
    for limit in (None, 5):
        score = evaluate(model, stream, SMALL, limit=limit)
        assert score.bytes is None
        assert score.bits_per_token == pytest.approx(score.nats / score.tokens / math.log(2))
        with pytest.raises(SegueError, match="loses some of the text, so there are no bits per byte; use"):
            _ = score.bits_per_byte


def test_words_are_those_of_the_original_text(tmp_path: Path) -> None:
    text = "the sea  and\nthe ship\n" * 20
    corpora = {
        kind: corpus_of(tmp_path / kind, text, tokenizer=kind, size=300, minimum=30)
        for kind in ("words", "bpe", "bytes")
    }
    streams = {kind: corpus.stream("train") for kind, corpus in corpora.items()}
    for kind in ("words", "bpe"):
        whole = scored(streams[kind], 1.0, len(streams[kind].ids) - 1)
        assert whole.words == pytest.approx(140, abs=1)
    assert scored(streams["words"], 5.0, 10).word_perplexity == pytest.approx(math.exp(0.5))
    assert scored(streams["bpe"], 5.0, 10).word_perplexity is None
    assert scored(streams["bytes"], 5.0, 10).word_perplexity is None


def test_an_older_corpus_is_judged_by_its_kind(tmp_path: Path) -> None:
    for kind, lossless in (("bytes", True), ("bpe", True), ("characters", False), ("words", False)):
        corpus_of(tmp_path / kind, "the sea\n" * 9, tokenizer=kind, size=260)
        header = tmp_path / kind / "corpus.json"
        values = json.loads(header.read_text())
        del values["lossless"]
        header.write_text(json.dumps(values))
        assert open_corpus(tmp_path / kind).header.lossless == lossless


DYNAMIC = Dynamic(learning_rate=1e-2, decay=1e-2, gather=60)


def test_dynamic_evaluation_by_the_formula() -> None:
    model, stream = build(shape()), some_stream(19)
    reading = Reading(segment=6, reach=Reach(memory=6))
    squares = mean_squares(model, some_stream(61), reading, 60)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    found = evaluate_dynamic(model, stream, reading, squares, DYNAMIC)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), "the model comes back as it was"
    tokens = torch.from_numpy(stream.ids.astype(np.int64))[None]
    first, memory = model(tokens[:, :6], model.start(reach=reading.reach))
    loss = model.nats(first, tokens[:, 1:7])
    loss.mean().backward()
    mean = torch.cat([square.sqrt().flatten() for square in squares.values()]).mean()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            size = squares[name].sqrt()
            weight.copy_(before[name] - DYNAMIC.learning_rate * weight.grad / (size + DYNAMIC.epsilon))
    second, memory = model(tokens[:, 6:12], memory)
    later = model.nats(second, tokens[:, 7:13])
    model.zero_grad()
    later.mean().backward()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            size = squares[name].sqrt()
            pull = (DYNAMIC.decay * size / mean).clamp(max=1)
            step = DYNAMIC.learning_rate * weight.grad / (size + DYNAMIC.epsilon)
            weight.copy_(weight - step + pull * (before[name] - weight))
    third, _ = model(tokens[:, 12:18], memory)
    expected = loss.sum() + later.sum() + model.nats(third, tokens[:, 13:19]).sum()
    assert found.nats == pytest.approx(expected.item())


def test_dynamic_evaluation_at_rate_zero_is_static_to_the_last_bit() -> None:
    model, stream = build(shape()), some_stream(40)
    reading = Reading(segment=6, reach=Reach(memory=6))
    still = evaluate_dynamic(model, stream, reading, {}, Dynamic(learning_rate=0))
    assert still.nats == evaluate(model, stream, reading).nats


def test_dynamic_evaluation_that_diverges_ends_there_and_leaves_the_model_as_it_was() -> None:
    model, stream = build(shape()), some_stream(400)
    reading, told = Reading(segment=6, reach=Reach(memory=6)), []
    squares = mean_squares(model, some_stream(61), reading, 60)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    wild = Dynamic(learning_rate=1e30)
    score = evaluate_dynamic(model, stream, reading, squares, wild, report=lambda *done: told.append(done))
    assert not math.isfinite(score.nats)
    assert len(told) < 400 // 6
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_steps_on_another_text_teach_that_text() -> None:
    model, stream = build(shape()), stream_of([1, 5, 2, 9] * 60)
    reading, dynamic = Reading(segment=8, reach=Reach(memory=8)), Dynamic(learning_rate=0.02, decay=0)
    squares = mean_squares(model, some_stream(61), reading, 60)

    def nats(lessons: Stream | None) -> float:
        return evaluate_dynamic(model, stream, reading, squares, dynamic, lessons=lessons).nats

    assert nats(stream) == nats(None)
    assert nats(stream_of([4, 3, 6, 7] * 60)) > evaluate(model, stream, reading).nats


def test_dynamic_evaluation_learns_what_repeats() -> None:
    model, stream = build(shape()), stream_of([1, 5, 2, 9] * 60)
    reading = Reading(segment=8, reach=Reach(memory=8))
    squares = mean_squares(model, some_stream(61), reading, 60)
    moving = evaluate_dynamic(model, stream, reading, squares, Dynamic(learning_rate=0.02, decay=0))
    assert moving.nats < 0.7 * evaluate(model, stream, reading).nats


def test_the_cache_by_the_formula() -> None:
    states, followers = torch.randn(9, 4, dtype=torch.float64), torch.randint(0, 3, (9,))
    found = cache_logprobs(states, followers, newest=4, cache=Cache(size=6, flatness=0.3))
    for place in range(5, 9):
        seen = slice(max(0, place - 6), place)
        weights = torch.exp(0.3 * states[seen] @ states[place])
        wanted = weights[followers[seen] == followers[place]].sum() / weights.sum()
        assert found[place - 5].exp() == pytest.approx(wanted.item())


def test_the_cache_mixes_and_forgets() -> None:
    model, stream = build(shape()), stream_of([1, 5, 2, 9] * 30)
    reading = Reading(segment=7, reach=Reach(memory=8))
    plain = evaluate(model, stream, reading)
    cached = evaluate_cached(model, stream, reading, Cache(size=50, weight=0.3, flatness=1.0))
    assert cached.nats < plain.nats
    none = evaluate_cached(model, stream, reading, Cache(size=50, weight=1e-12))
    assert none.nats == pytest.approx(plain.nats)
    assert cached.tokens == plain.tokens == 119
    whole = Reach(memory=200)
    totals = [
        evaluate_cached(model, stream, Reading(segment=segment, reach=whole), Cache(size=9, weight=0.3)).nats
        for segment in (1, 4, 30)
    ]
    assert totals[1:] == pytest.approx([totals[0]] * 2), "how the stream is cut does not change the cache"


def test_several_caches_in_one_pass_score_as_each_alone() -> None:
    model, stream = build(shape()), stream_of([1, 5, 2, 9] * 30)
    reading = Reading(segment=7, reach=Reach(memory=8))
    caches = [Cache(size=9, weight=0.3), Cache(size=50, weight=0.1, flatness=1.0), Cache(weight=0)]
    together = [score.nats for score in evaluate_caches(model, stream, reading, caches)]
    alone = [evaluate_cached(model, stream, reading, cache).nats for cache in caches]
    assert together == pytest.approx(alone)
    assert together[2] == pytest.approx(evaluate(model, stream, reading).nats), "weight 0 is no cache"


@pytest.mark.parametrize("initial", ["empty", "zeros"])
def test_segments_are_made_as_they_are_read(initial: str) -> None:
    ids = np.lib.stride_tricks.as_strided(np.zeros(1, dtype=np.uint8), (2**61,), (0,))  # a byte, 2^61 times
    split = Split(begin=0, end=len(ids), bytes=len(ids), words=0, documents=3)
    stream = Stream(ids, np.array([0, 6, 8]), split, ByteTokenizer())
    reading = Reading(segment=4, reach=Reach(memory=4, initial=initial))
    first = [len(segment.tokens[0]) for segment in islice(segments(stream, reading, 2**60), 5)]
    assert first == ([4, 2, 2, 4, 4] if initial == "zeros" else [4] * 5)
    assert [len(one.tokens[0]) for one in segments(stream, reading, 7)] == (
        [4, 2, 1] if initial == "zeros" else [4, 3]
    )


def test_a_memory_of_zeros_is_read_document_by_document() -> None:
    model, stream = build(shape()), some_stream(20, [3, 11])
    reading = Reading(segment=4, reach=Reach(memory=5, initial="zeros"))
    assert evaluate(model, stream, reading).tokens == 19
    with pytest.raises(SegueError, match="read in one lane"):
        evaluate(model, stream, reading, lanes=2)
