"""Text to ids and back: nothing is lost, what is unknown is named, and no character comes out in halves."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from segue.errors import InputError, SourceError
from segue.text.learn import train_bpe, train_characters, train_sentence_words, train_words
from segue.text.sources import WordConvention
from segue.text.tokenizer import (
    ByteTokenizer,
    TextTokenizer,
    bytes_of,
    digest,
    load_tokenizer,
    reporting_errors,
    round_trips,
    start_ids,
    word_tokenizer,
)
from tokenizers_of_texts import WORLD, each_kind, tiny_bpe


@given(st.binary())
def test_any_bytes_come_back(text: bytes) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert list(ids) == list(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.size == 256


@given(symbols=st.lists(st.integers(0, 255), unique=True, max_size=20).map(bytes), text=st.binary())
def test_ids_of_some_bytes_are_their_places_and_strangers_are_named(symbols: bytes, text: bytes) -> None:
    tokenizer = ByteTokenizer(symbols)
    strangers = [byte for byte in text if byte not in symbols]
    if not strangers:
        assert list(tokenizer.encode(text)) == [symbols.index(byte) for byte in text]
        return
    with pytest.raises(InputError) as caught:
        tokenizer.encode(text)
    assert str(caught.value).startswith(f"byte {strangers[0]} ({bytes(strangers[:1])!r}) is not among the ")
    known = bytes(byte for byte in text if byte in symbols)
    assert tokenizer.decode(tokenizer.encode(known)) == known


@given(st.text())
def test_any_characters_come_back_one_id_each(text: str) -> None:
    tokenizer = train_characters([text.encode()], 1)
    ids = tokenizer.encode(text.encode())
    assert tokenizer.decode(ids) == text.encode()
    assert len(ids) == len(text)
    assert 0 not in ids
    assert tokenizer.size == len(set(text)) + 1


def test_characters_are_numbered_by_falling_frequency() -> None:
    tokenizer = train_characters(["bä\n".encode(), "bäbzaz".encode()], 2)
    assert tokenizer.encode("bzä\naq".encode()) == [1, 2, 3, 0, 0, 0]
    assert tokenizer.decode([0, 3]) == "<unk>ä".encode()


def test_words_follow_the_convention_of_wikitext() -> None:
    tokenizer = train_words([b" the cat \n the\tdog <unk>\n", b"the dog\nonce"], 2)
    assert tokenizer.size == 4  # <eos>, <unk>, the, dog
    assert tokenizer.encode(b"the dog\n\na cat  the") == [2, 3, 0, 0, 1, 1, 2]
    assert tokenizer.encode(b"<unk> <eos>") == [1, 0]
    assert tokenizer.encode(b"  \t ") == []
    assert tokenizer.decode([2, 3, 0, 1]).split(b"\n") == [b"the dog", b" <unk>"]


@given(st.text("ab \t\n\x0b\x1c\x1d\x1e\x1f\x85\xa0\u2003\u2028\u200b\u3000", min_size=1))
def test_words_are_learned_as_they_are_cut(text: str) -> None:
    """One definition of a blank: no text has a word that its own vocabulary does not know."""
    tokenizer = train_words([text.encode()], 1)
    ids = tokenizer.encode(text.encode())
    assert 1 not in ids
    assert {*ids, 0, 1} == set(range(tokenizer.size))


def test_words_are_numbered_by_falling_frequency_then_by_name() -> None:
    tokenizer = train_words([b"c c b b a d d d"], 1)
    assert tokenizer.encode(b"d b c a") == [2, 3, 4, 5]


@given(st.lists(st.lists(st.text("ab<ä東", min_size=1), min_size=1), min_size=1))
def test_known_words_and_lines_come_back(lines: list[list[str]]) -> None:
    text = "\n".join(" ".join(line) for line in lines).encode()
    tokenizer = train_words([text], 1)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.split()) + text.count(b"\n")
    assert [line.split() for line in tokenizer.decode(ids).split(b"\n")] == [
        line.split() for line in text.split(b"\n")
    ]


def test_lines_of_the_one_billion_word_benchmark_end_in_s() -> None:
    tokenizer = train_words([b"the sea\nthe\n"], 1, WordConvention(boundary="<S>", unknown="<UNK>"))
    assert tokenizer.encode(b"the ship\nsea\n") == [2, 1, 0, 3, 0]
    assert tokenizer.decode([2, 0, 3, 0]) == b"the\n sea\n"
    assert start_ids(tokenizer) == [0]


@given(st.lists(st.text("ab'.,-é 1", min_size=1)))
def test_sentences_of_words_come_back_as_they_were_written(sentences: list[str]) -> None:
    tokenizer = train_sentence_words([text.encode() for text in sentences], 9999, 1)
    for text in sentences:
        assert tokenizer.decode(tokenizer.encode(text.encode())).decode() == " ".join(text.split())


def test_sentences_are_cut_into_words_and_marks() -> None:
    tokenizer = train_sentence_words([b"The dog's ball. The dog, the  dog", b"The dog"], 4, 2)
    assert [tokenizer.decode([place]) for place in range(tokenizer.size)] == [b"<unk>", b"dog", b"The"]
    assert tokenizer.encode(b"The\tcat") == [2, 0]
    assert tokenizer.decode([2, 0, 1]) == b"The <unk> dog"
    assert tokenizer.encode(b"  ") == []
    assert train_sentence_words([b"a b c c"], 2, 1).size == 2
    assert train_sentence_words([], 5, 1).encode(b"a") == [0]


def test_a_symbol_named_twice_is_refused() -> None:
    with pytest.raises(SourceError, match="names 'b' twice"):
        word_tokenizer(["a", "b", "c", "b"])


def test_a_stranger_to_a_vocabulary_without_unknown_is_refused() -> None:
    assert word_tokenizer(["go", "on"]).encode(b"on\ngo") == [1, 0]
    assert word_tokenizer(["<UNK>", "on"]).encode(b"go on") == [0, 1]
    with pytest.raises(InputError, match="no id for some of this text") as caught:
        word_tokenizer(["go", "on"]).encode(b"go home")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no id for some of this text"):
        word_tokenizer(["go", "on"]).spans(b"go home")


@pytest.mark.parametrize("kind", ["bytes", "characters", "words", "bpe"])
@given(text=st.text() | st.text("ab \n😀"))
def test_every_token_knows_its_stretch_of_the_text(kind: str, text: str) -> None:
    tokenizer = each_kind()[kind]
    ids, stretches = tokenizer.spans(text.encode())
    assert list(ids) == list(tokenizer.encode(text.encode()))
    assert len(ids) == len(stretches)
    assert b"".join(stretches) == (text.encode() if stretches else b"")


def test_blanks_belong_to_the_token_behind_them() -> None:
    assert train_words([b"a b"], 1).spans(b" a\t b \nc ")[1] == [b" a", b"\t b", b" \n", b"c "]
    assert tiny_bpe().spans("😀!".encode())[1][0] == "😀".encode()


@given(st.text())
def test_any_text_round_trips_from_bpe(text: str) -> None:
    assert tiny_bpe().decode(tiny_bpe().encode(text.encode())) == text.encode()


def test_bpe_learns_what_is_frequent_and_needs_room_for_it() -> None:
    assert 257 < tiny_bpe().size <= 280
    assert len(tiny_bpe().encode(b"the the")) == 2
    with pytest.raises(InputError, match="needs at least 257 symbols, since every byte is one; found .* 256"):
        train_bpe([b"the"], 256)


def plain_bpe(text: str, size: int) -> str:
    """As the library itself trains it, line by line."""
    file = TokenizerFile(models.BPE())
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    file.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    file.train_from_iterator(text.splitlines(keepends=True), trainer)
    return str(file.to_str(pretty=False))


@settings(max_examples=20)
@given(text=st.text() | st.text("ab 'sé1_\t\n東", max_size=200))
def test_bpe_of_ordinary_text_is_the_librarys_own(text: str) -> None:
    assert train_bpe([text.encode()], 300).json() == plain_bpe(text, 300) + "\n"


@pytest.mark.parametrize("sign", ["a", "東", "7", "-", " "])
def test_bpe_learns_from_words_of_bounded_length(sign: str) -> None:
    """Else training would take the square of a text without blanks."""
    text = (sign * 5000).encode()
    tokenizer = train_bpe([text], 300)
    assert 1 < tokenizer.sizes.max() <= 512 * len(sign.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["bytes", "some bytes", "characters", "bpe"])
def test_tokens_have_as_many_bytes_as_their_text(kind: str) -> None:
    tokenizer = each_kind()[kind]
    text = b"a cab\nca" if kind == "some bytes" else WORLD.encode()
    ids = np.array(tokenizer.encode(text))
    assert bytes_of(tokenizer, ids) == len(text)
    assert round_trips(tokenizer, ids, text)
    assert not round_trips(tokenizer, ids[1:], text)


def test_only_bytes_and_byte_level_bpe_keep_every_text() -> None:
    keep = {kind for kind, tokenizer in each_kind().items() if tokenizer.lossless}
    assert keep == {"bytes", "some bytes", "bpe"}
    lower = TokenizerFile.from_str(tiny_bpe().json())
    lower.normalizer = normalizers.Lowercase()
    assert not TextTokenizer(lower).lossless


def test_a_text_begins_with_a_newline_or_with_the_end_of_another() -> None:
    assert start_ids(ByteTokenizer()) == [10]
    assert start_ids(train_words([b"a b"], 1)) == [0]  # <eos>
    assert start_ids(word_tokenizer(["a", "b", "</s>"])) == [2]
    assert start_ids(word_tokenizer(["<unk>", "b"])) == [0]
    assert start_ids(train_characters([b"ab"], 1)) == [0]
    assert start_ids(ByteTokenizer(b"ab")) == [0]
    assert tiny_bpe().decode(start_ids(tiny_bpe())) == b"\n"


@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_what_is_not_utf8_is_shown(kind: str) -> None:
    with pytest.raises(InputError, match=r"found b'\\xff!' after b'so it goes ';.*bytes tokenizer") as caught:
        each_kind()[kind].encode(b"so it goes \xff!")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", each_kind())
def test_a_tokenizer_round_trips_from_its_file(kind: str, tmp_path: Path) -> None:
    saved = each_kind()[kind]
    (tmp_path / "tokenizer.json").write_text(saved.json(), encoding="utf-8")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    text = b"a cab\nca" if kind == "some bytes" else WORLD.encode()
    assert type(loaded) is type(saved)
    assert (loaded.json(), digest(loaded), loaded.size) == (saved.json(), digest(saved), saved.size)
    assert list(loaded.encode(text)) == list(saved.encode(text))
    assert loaded.decode(loaded.encode(text)) == saved.decode(saved.encode(text))


def test_different_tokenizers_have_different_digests() -> None:
    assert len({digest(tokenizer) for tokenizer in each_kind().values()}) == len(each_kind())
    assert digest(train_words([b"a b"], 1)) == digest(train_words([b"b", b"a"], 1))
    assert digest(ByteTokenizer(b"ab")) != digest(ByteTokenizer(b"ba"))


def foreign(path: Path) -> Path:
    """A file as others publish it: it adds marks of its own, cuts at three tokens and pads to five."""
    file = TokenizerFile(
        models.WordPiece({"[UNK]": 0, "[CLS]": 1, "play": 2, "##ing": 3, "on": 700}, unk_token="[UNK]")  # noqa: S106
    )
    file.pre_tokenizer = pre_tokenizers.Whitespace()
    file.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    file.enable_truncation(3)
    file.enable_padding(length=5)
    file.save(str(path))
    return path


def test_a_foreign_file_is_read_without_its_additions(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(foreign(tmp_path / "tokenizer.json"))
    assert tokenizer.encode(b"playing on and on playing") == [2, 3, 700, 0, 700, 2, 3]
    assert tokenizer.encode(b"") == []
    assert tokenizer.size == 701  # its ids have a gap, and the last one must fit
    (tmp_path / "ours.json").write_text(tokenizer.json(), encoding="utf-8")
    assert digest(load_tokenizer(tmp_path / "ours.json")) == digest(tokenizer)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"rubbish",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"model": 3}',
        b'{"segue": "bytes"}',
        b'{"segue": "bytes", "symbols": [256]}',
        b'{"segue": "bytes", "symbols": 5}',
    ],
)
def test_rubbish_is_no_tokenizer(rubbish: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(rubbish)
    with pytest.raises(SourceError, match=r"tokenizer\.json is no tokenizer\.json: .") as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere.json could not be read: No such file"):
        load_tokenizer(tmp_path / "nowhere.json")


def test_a_byte_file_says_whose_it_is() -> None:
    assert json.loads(ByteTokenizer(b"ba").json()) == {"segue": "bytes", "symbols": [98, 97]}


@pytest.mark.parametrize("symbols", [[], [1, 1], list(range(256)) * 2, [256], [-1], "ab", 5, None])
def test_the_symbols_of_bytes_are_different_bytes(symbols: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"segue": "bytes", "symbols": symbols}))
    with pytest.raises(SourceError, match="is no tokenizer.json"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_ids_beyond_reason_are_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    with pytest.raises(SourceError, match="an id of 4,000,000,000"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_panic_of_the_library_is_one_line() -> None:
    class PanicException(BaseException):
        pass

    with (
        pytest.raises(SourceError, match="no tokenizer: oh"),
        reporting_errors(SourceError, "no tokenizer: "),
    ):
        raise PanicException("oh")
    with pytest.raises(KeyboardInterrupt), reporting_errors(SourceError, ""):
        raise KeyboardInterrupt
