"""Sessions, sampling and surprise: reading on at constant memory."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segue.checkpoint import Bundle
from segue.config import Reach, Reading, XLConfig
from segue.errors import InputError, SegueError
from segue.infer.reader import Reader
from segue.infer.sample import Sampling, choose, narrowed
from segue.infer.session import Session, _Held, generate_samples
from segue.infer.surprise import most_surprising, stretches, surprises
from segue.text.learn import train_bpe, train_words
from segue.text.tokenizer import ByteTokenizer, Tokenizer
from support import build, shape


def bundle(**changes: object) -> Bundle:
    config = XLConfig(**{"vocab": 256, "width": 8, "layers": 2, "heads": 2, **changes})
    return Bundle(build(config), Reading(segment=5, reach=Reach(memory=32)), ByteTokenizer())


def test_feeding_in_pieces_makes_no_difference() -> None:
    whole, pieces = bundle().session(), bundle().session()
    nats = whole.feed("the sea and the ship")
    assert len(nats) == 19
    parts = [pieces.feed(part) for part in ("the ", "", "sea and", b" the ship")]
    assert [*parts[0], *parts[1], *parts[2], *parts[3]] == pytest.approx(nats, rel=1e-9)
    torch.testing.assert_close(pieces.logprobs(), whole.logprobs())
    assert float(whole.logprobs().exp().sum()) == pytest.approx(1)


def test_a_fork_goes_its_own_way() -> None:
    session = bundle().session()
    session.feed("the sea")
    twin = session.fork()
    first = session.generate(12, seed=3)
    assert twin.generate(12, seed=3) == first
    assert twin.generate(12, seed=4) != session.generate(12, seed=5)


def byte_and_bpe() -> list[Tokenizer]:
    return [ByteTokenizer(), train_bpe(["ä€🐟 sea\n".encode() * 9], 259)]


@given(st.sampled_from([0, 1]), st.lists(st.integers(0, 5), max_size=6), st.integers(0, 9))
def test_what_is_said_in_parts_is_what_is_said_at_once(kind: int, parts: list[int], seed: int) -> None:
    """However it is cut, and if others go on from forks on the way; untrained models say many halves of characters."""
    tokenizer = byte_and_bpe()[kind]
    model = build(XLConfig(vocab=tokenizer.size, width=8, layers=1, heads=2), seed)
    at_once = Bundle(model, Reading(segment=5, reach=Reach(memory=8)), tokenizer).session()
    at_once.feed("ä")
    in_parts, said = at_once.fork(), ""
    for part in parts:
        said += in_parts.generate(part, temperature=0)
        in_parts.fork().generate(2, temperature=0)
        in_parts = in_parts.fork()
    assert said == at_once.generate(sum(parts), temperature=0)
    assert torch.equal(in_parts.logprobs(), at_once.logprobs())
    assert in_parts.generate(4, temperature=0) == at_once.generate(4, temperature=0)


def saying(text: bytes) -> Session:
    """A session whose model says this text byte by byte, for ever; what is fed takes the place of as many bytes."""
    session = bundle().session()
    session.feed(b"\0")
    return replace(session, reader=Saying(session.reader, text))


class Saying(Reader):
    """A reader to which the next byte of a text is certain, whatever it reads."""

    def __init__(self, reader: Reader, text: bytes) -> None:
        super().__init__(reader.engine, reader.reading, reader.memory, reader.hidden)
        object.__setattr__(self, "text", text)

    def read(self, tokens: Tensor) -> tuple[Reader, Tensor]:
        said = tokens.size(1) % len(self.text)
        return Saying(self, self.text[said:] + self.text[:said]), torch.zeros(tokens.shape)

    def advance(self, tokens: Tensor) -> Reader:
        return self.read(tokens[:, None])[0]

    def logprobs(self) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([self.text[0]]), 256).double().log()


def test_half_a_character_waits_for_the_next_call() -> None:
    session = saying("a€b".encode())
    assert [session.generate(1) for _ in range(5)] == ["a", "", "", "€", "b"]


def test_fed_bytes_and_said_bytes_are_one_stream() -> None:
    session = saying("€b".encode())
    session.feed("€".encode()[:1])
    assert session.generate(3) == "€b"  # the rest of the character is said
    assert session.generate(1) == ""
    assert session.fork().generate(2) == "€"
    session.feed("€".encode()[1:])  # or it is fed, and nobody has said it
    assert session.generate(1) == "b"
    for broken in (b"abc", b"x" * 15):  # what text has broken is not said any more, however long it is
        assert session.generate(1) == ""
        session.feed(broken)
        assert session.generate(4) == "€b"


def test_words_go_on_behind_what_was_fed() -> None:
    tokenizer = train_words([b"the sea and ship"], 1)
    model = build(XLConfig(vocab=tokenizer.size, width=8, layers=1, heads=2))
    session = Bundle(model, Reading(segment=5, reach=Reach(memory=8)), tokenizer).session()
    session.feed("the sea")
    twin = session.fork()
    said = session.generate(3, temperature=0)
    ids = tokenizer.encode(b"the sea")
    for _ in range(3):
        ids = [*ids, int(twin.logprobs().argmax())]
        twin.read(ids[-1:])
    assert "the sea" + said == tokenizer.decode(ids).decode()


def test_text_held_for_a_stop_string_is_said_once() -> None:
    session = saying(b"abcabd")
    assert session.generate(2, stop=["abd"]) == "ab"
    assert session.generate(9, stop=["abd"]) == "c"


def test_memory_stays_constant() -> None:
    session = bundle().session(memory=6)
    for _ in range(10):
        session.feed("the sea and the ship")
        assert session.reader.memory.size == 6
    session.generate(30)
    assert session.reader.memory.rows[0].shape[1] == 6


def test_greedy_is_the_likeliest_every_time() -> None:
    session = bundle().session()
    session.feed("a")
    twin = session.fork()
    decode, said = twin.tokenizer.stream(), ""
    for _ in range(8):
        best = int(twin.logprobs().argmax())
        said += decode(best)
        twin.feed(bytes([best]))
    assert session.generate(8, temperature=0) == said


def test_a_model_without_memory_keeps_a_window_and_reads_it_anew() -> None:
    config = shape("learned", vocab=256, max_positions=6)
    vanilla = Bundle(
        build(config), Reading(segment=6, reach=Reach(memory=0, positions="restart")), ByteTokenizer()
    )
    session = vanilla.session()
    session.feed("the sea and the ship")
    window = torch.tensor([list(b"e ship")])
    hidden, _ = vanilla.model(window, vanilla.model.start(reach=vanilla.reading.reach))
    torch.testing.assert_close(session.logprobs(), vanilla.model.logprobs(hidden[0, -1]))
    assert len(session.generate(20, seed=1).encode(errors="surrogateescape")) >= 20


def test_what_is_no_text_is_refused() -> None:
    session = bundle().session()
    with pytest.raises(InputError, match=r"'\\ud800' at 3 is half of a surrogate pair") as caught:
        session.feed("the\ud800")
    assert "\n" not in str(caught.value)
    for wrong in (7, None, ["a"]):
        with pytest.raises(InputError, match="feed wants str or bytes; found "):
            session.feed(wrong)
    assert session.reader.hidden is None
    assert len(session.feed(bytearray(b"the"))) + len(session.feed(memoryview(b"sea"))) == 5
    with pytest.raises(InputError, match="a seed should lie between"):
        session.generate(1, seed=2**64)


@given(
    st.binary(min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=5),
    st.integers(1, 9),
    st.none() | st.integers(1, 20),
)
def test_bytes_may_be_fed_in_any_pieces(text: bytes, cuts: list[int], memory: int, span: int | None) -> None:
    """Also beyond what memory holds: every token of a session sees as far back, wherever a segment ends."""
    whole, pieces = (bundle().session(reach=Reach(memory=memory, span=span)) for _ in range(2))
    nats: list[float] = []
    for begin, end in pairwise([0, *sorted(cuts), 60]):
        nats += pieces.feed(text[begin:end])
    assert nats == pytest.approx(whole.feed(text), rel=1e-9)
    torch.testing.assert_close(pieces.logprobs(), whole.logprobs())
    assert pieces.generate(5, temperature=0) == whole.generate(5, temperature=0)


def test_nothing_can_be_said_before_anything_was_read() -> None:
    with pytest.raises(SegueError, match="feed some text first"):
        bundle().session().generate(3)
    with pytest.raises(SegueError, match="has no tokenizer"):
        Bundle(build(shape()), Reading(segment=5, reach=Reach(memory=3))).session()


def test_several_samples_are_as_good_as_one() -> None:
    session = bundle().session()
    session.feed("the sea")
    samples = generate_samples(session, 3, 10, Sampling(), seed=1)
    assert len(samples) == len(set(samples)) == 3
    greedy = generate_samples(session, 2, 10, Sampling(temperature=0), seed=None)
    assert greedy[0] == greedy[1] == session.fork().generate(10, temperature=0)


def test_each_sample_is_what_its_own_seed_gives() -> None:
    """In float64, where the number of lanes moves no draw. A stop string stops its own lane."""
    session = bundle().session()
    session.feed(b"the sea" + "€".encode()[:2])
    alone = [session.fork().generate(30, seed=seed) for seed in (5, 6, 7)]
    assert generate_samples(session, 3, 30, Sampling(), seed=5) == alone
    stop = [alone[1][4:6]]
    stopped = [session.fork().generate(30, seed=seed, stop=stop) for seed in (5, 6, 7)]
    assert generate_samples(session, 3, 30, Sampling(), seed=5, stop=stop) == stopped
    assert stopped[1] == alone[1][: alone[1].index(stop[0])]
    assert len(set(generate_samples(session, 3, 30, Sampling(), seed=None))) == 3


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=2), st.data())
def test_stop_strings_never_show(text: str, stop: list[str], data: st.DataObject) -> None:
    held, shown, rest = _Held(stop), "", text
    while rest and not held.stopped:
        size = data.draw(st.integers(1, 4))
        shown += "".join(held.add(rest[:size]))
        rest = rest[size:]
    shown += "" if held.stopped else held.rest
    ends = [text.find(mark) for mark in stop if mark in text]
    assert not any(mark in shown for mark in stop)
    assert text.startswith(shown)
    assert bool(ends) == held.stopped


def test_a_character_is_never_broken() -> None:
    """The model says the bytes of ä, € and 🐟 one by one; what is shown is whole at every moment."""
    session = bundle().session()
    stream = session.tokenizer.stream()
    text = "ä€🐟!"
    pieces = [stream(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert pieces == ["", "ä", "", "", "€", "", "", "", "🐟", "!"]


@given(st.integers(1, 12), st.floats(0.05, 1.0), st.integers(0, 12))
def test_narrowing_keeps_the_likeliest(size: int, top_p: float, top_k: int) -> None:
    torch.manual_seed(size)
    logits = torch.randn(2, 12).log_softmax(-1)
    kept = narrowed(logits, Sampling(top_k=top_k, top_p=top_p)).isfinite()
    assert kept.gather(1, logits.argmax(1, keepdim=True)).all()
    if top_k:
        assert (kept.sum(1) <= top_k).all()
    if not top_k:
        chances = logits.softmax(-1)
        assert (chances.masked_fill(~kept, 0).sum(1) >= min(top_p, 1) - 1e-5).all()
        least = chances.masked_fill(~kept, 2).min(1).values
        assert (chances.masked_fill(~kept, 0).sum(1) - least < top_p + 1e-5).all()  # not one more than needed


def test_sampling_follows_the_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    chances = torch.tensor([0.5, 0.3, 0.2])
    counts = Counter(int(choose(chances.log()[None], Sampling(), generator)) for _ in range(3000))
    for token, chance in enumerate(chances.tolist()):
        assert counts[token] / 3000 == pytest.approx(chance, abs=0.03)
    cold = Counter(int(choose(chances.log()[None], Sampling(temperature=0.2), generator)) for _ in range(500))
    assert cold[0] > 430


@pytest.mark.parametrize(
    "settings", [{"temperature": math.inf}, {"temperature": math.nan}, {"top_p": math.nan}]
)
def test_sampling_wants_finite_numbers(settings: dict[str, float]) -> None:
    with pytest.raises(SegueError, match="should be a finite number; found (inf|nan)"):
        Sampling(**settings)


def scored(session: Session, pieces: list[bytes], per: str) -> list[tuple[bytes, float]]:
    return [(found.text, found.nats) for found in stretches(surprises(session, pieces), per, 4)]


def test_surprise_adds_up_however_it_is_cut() -> None:
    text = b"the sea\nand the ship\n\nhome"
    totals = {}
    for per in ("token", "line", "window"):
        found = scored(bundle().session(), [text], per)
        assert b"".join(part for part, _ in found) == text
        totals[per] = sum(nats for _, nats in found)
    session = bundle().session()
    assert totals["line"] == pytest.approx(sum(session.feed(text)))
    assert totals["token"] == pytest.approx(totals["line"])
    assert totals["window"] == pytest.approx(totals["line"])
    assert [part for part, _ in scored(bundle().session(), [text[:9], text[9:]], "line")] == text.splitlines(
        keepends=True
    )


def test_surprise_of_words_that_are_not_bytes() -> None:
    tokenizer = train_bpe([b"the sea the ship the sea\n" * 20], 270)
    model = build(XLConfig(vocab=tokenizer.size, width=8, layers=1, heads=2))
    reading = Reading(segment=5, reach=Reach(memory=8))
    found = scored(Bundle(model, reading, tokenizer).session(), ["the sea\nä ship\n".encode()], "line")
    assert [part for part, _ in found] == [b"the sea\n", "ä ship\n".encode()]


def test_what_stands_out_is_found_whatever_its_length() -> None:
    usual = [(b"a", 1.0), (b"b", 1.2), (b"\n", 0.8)] * 50
    odd = [(b"x", 6.0), (b"y", 5.0), (b"\n", 1.0)]
    found = most_surprising(stretches([*usual, *odd, *usual], "line", 0), 1)
    assert [(stretch.number, stretch.text) for stretch in found] == [(51, b"xy\n")]
    assert found[0].bits_per_byte == pytest.approx(12 / math.log(2) / 3)


def test_ids_that_are_none_and_a_stop_string_alone() -> None:
    session = bundle().session()
    for wrong in (torch.tensor([1.5]), 5, [[1, 2]]):
        with pytest.raises(InputError, match="a row of token ids"):
            session.read(wrong)  # type: ignore[arg-type]
    session.feed("abc")
    with pytest.raises(InputError, match="a seed should lie"):
        session.generate(1, seed=1.5)  # type: ignore[arg-type]
    spoken = saying(b"xabyabc")
    assert spoken.generate(20, stop="abc") == "xaby"  # one string, not three letters
