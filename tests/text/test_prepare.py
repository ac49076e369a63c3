"""From text to a corpus: nothing is lost, splits are where they should be, and it is written whole or not at all."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segue.errors import ConfigError, InputError, SegueError
from segue.text.corpus import CorpusHeader, open_corpus
from segue.text.prepare import PrepareConfig, prepare, split_pieces
from segue.text.sources import Piece, Source
from segue.text.tokenizer import ByteTokenizer, word_tokenizer

WHOLE = PrepareConfig(valid=0, test=0)


def pieces_of(documents: Sequence[bytes], length: int) -> Iterator[Piece]:
    for text in documents:
        for start in range(0, len(text), length):
            yield Piece(text[start : start + length], start == 0)


def source_of(*documents: bytes, length: int = 10**9) -> Source:
    """Documents in pieces of one length, wherever that cuts them."""
    return Source("it", {"train": lambda: pieces_of(documents, length)})


def splits_of(source: Source, config: PrepareConfig) -> dict[str, bytes]:
    texts: dict[str, bytes] = {}
    for split, piece in split_pieces(source, config):
        texts[split] = texts.get(split, b"") + piece.text
    return texts


def prepared(source: Source, folder: Path, config: PrepareConfig = WHOLE) -> CorpusHeader:
    return prepare(source, folder, config, lambda *_: None)


def refused(match: str, source: Source, folder: Path, config: PrepareConfig = WHOLE) -> None:
    """One line, and nothing that was not there before."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(SegueError, match=match) as caught:
        prepared(source, folder, config)
    assert "\n" not in str(caught.value)
    assert sorted(folder.parent.rglob("*")) == before


SHARES = st.sampled_from([0.0, 0.0625, 0.25, 0.4375])
"""Exact in binary, so that bounds round alike however they are worked out."""


def seam_after(text: bytes, place: int) -> int | None:
    """Where one document is cut at or after a place: behind a line, else a blank, else a whole character."""
    body = len(text.rstrip(b"\n"))
    lines = [end for end in range(place, len(text)) if text[end - 1 : end] == b"\n"]
    blanks = [end for end in range(place, body) if text[end - 1 : end] == b" "]
    characters = [end for end in range(place, body) if text[end] & 0b1100_0000 != 0b1000_0000]
    return next(iter(lines + blanks + characters), None)


@given(
    text=st.text("ab\n", min_size=1).map(str.encode) | st.text("ab \né", min_size=1).map(str.encode),
    length=st.integers(1, 30),
    valid=SHARES,
    test=SHARES,
)
@example(text=b"one\ntwo\nthree\nfour\n", length=4, valid=0.4375, test=0.25)
@example(text=b"one line, and nothing else", length=4, valid=0.25, test=0.25)
def test_one_document_is_cut_at_line_ends_wherever_its_pieces_end(
    text: bytes, length: int, valid: float, test: float
) -> None:
    expected, begin, split = {}, 0, "train"
    for name, share, held_out in (("valid", valid, valid + test), ("test", test, test)):
        bound = round(len(text) * (1 - held_out))
        seam = seam_after(text, max(bound, begin + 1))
        if share and seam:
            expected[split] = text[begin:seam]
            split, begin = name, seam
        elif share:
            break
    expected[split] = text[begin:]
    config = PrepareConfig(valid=valid, test=test)
    assert splits_of(source_of(text, length=length), config) == expected
    begins = Counter(
        split for split, piece in split_pieces(source_of(text, length=length), config) if piece.begins
    )
    assert begins == dict.fromkeys(expected, 1)


def test_a_file_of_one_line_is_split(tmp_path: Path) -> None:
    line = b"one long line without an end " * 40
    assert [len(text) for text in splits_of(source_of(line), PrepareConfig()).values()] == [1044, 58, 58]
    assert [len(text) for text in splits_of(source_of(b"x" * 1000), PrepareConfig()).values()] == [
        900,
        50,
        50,
    ]
    binary = splits_of(source_of(b"\x80" * 1000), PrepareConfig())  # no character of UTF-8 begins anywhere
    assert [len(text) for text in binary.values()] == [900, 50, 50]
    bpe = prepared(
        source_of("東京".encode() * 300), tmp_path / "corpus", PrepareConfig(tokenizer="bpe", size=260)
    )
    assert {name: split.documents for name, split in bpe.splits.items()} == {
        "train": 1,
        "valid": 1,
        "test": 1,
    }


def test_a_line_is_cut_when_its_end_is_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.text.prepare.MAX_LINE_BYTES", 20)
    near, far = b"x" * 80 + b"y" * 9 + b"\n" + b"z" * 10, b"x" * 80 + b"y" * 18 + b"\n" + b"z"
    config = PrepareConfig(valid=0, test=0.4375)
    assert [len(text) for text in splits_of(source_of(near, length=7), config).values()] == [56, 44]
    assert [len(text) for text in splits_of(source_of(far), config).values()] == [56, 44]
    late = PrepareConfig(valid=0, test=0.1875)
    assert [len(text) for text in splits_of(source_of(near, length=7), late).values()] == [90, 10]


def test_what_follows_a_document_of_one_line_is_split_off_before_the_line_is_cut() -> None:
    assert splits_of(source_of(b"a" * 90, b"b" * 10), PrepareConfig(valid=0, test=0.1875)) == {
        "train": b"a" * 90,
        "test": b"b" * 10,
    }


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    length=st.integers(1, 10),
    valid=SHARES,
    test=SHARES,
)
def test_many_documents_are_cut_where_one_begins(
    sizes: list[int], length: int, valid: float, test: float
) -> None:
    documents = [b"a" * (size - 1) + b"\n" for size in [1, *sizes]]
    total, at, split = sum(map(len, documents)), 0, "train"
    bounds = [
        (name, round(total * (1 - held_out)))
        for name, share, held_out in (("valid", valid, valid + test), ("test", test, test))
        if share
    ]
    expected: dict[str, list[bytes]] = {}
    for document in documents:
        if expected and bounds and at >= bounds[0][1]:
            split = bounds.pop(0)[0]
        expected.setdefault(split, []).append(document)
        at += len(document)
    splits: dict[str, list[bytes]] = {}
    config = PrepareConfig(valid=valid, test=test)
    for name, piece in split_pieces(source_of(*documents, length=length), config):
        kept = splits.setdefault(name, [])
        if piece.begins:
            kept.append(b"")
        kept[-1] += piece.text
    assert splits == expected


@given(documents=st.lists(st.binary(min_size=1), min_size=1, max_size=8), length=st.integers(1, 50))
def test_the_ids_on_disk_are_the_text(documents: list[bytes], length: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "corpus"
        header = prepared(source_of(*documents, length=length), folder, PrepareConfig(valid=0.2, test=0.2))
        assert (folder / "ids.bin").read_bytes() == b"".join(documents)
        assert header.width == "uint8"
        spans = [(split.begin, split.end) for split in header.splits.values()]
        assert spans[0][0] == 0
        assert spans[-1][1] == sum(map(len, documents))
        assert all(left[1] == right[0] for left, right in pairwise(spans))
        ends = set(np.fromfile(folder / "ends.bin", dtype="<u8").tolist())
        assert ends == {*np.cumsum([len(text) for text in documents]).tolist(), *(end for _, end in spans)}
        corpus = open_corpus(folder)
        for name, split in header.splits.items():
            stream = corpus.stream(name)
            assert corpus.tokenizer.decode(stream.ids) == b"".join(documents)[split.begin : split.end]
            inside = [end - split.begin for end in sorted(ends) if split.begin < end < split.end]
            assert stream.starts.tolist() == [0, *inside]
            assert split.documents == len(stream.starts)
            assert split.bytes == split.tokens == len(stream.ids)


@pytest.mark.parametrize(
    ("words", "width"), [(254, "uint8"), (255, "uint16"), (65_534, "uint16"), (65_535, "uint32")]
)
def test_the_narrowest_width_that_fits(words: int, width: str, tmp_path: Path) -> None:
    text = b" ".join(b"%d" % number for number in range(words))
    header = prepared(source_of(text), tmp_path / "corpus", WHOLE.model_copy(update={"tokenizer": "words"}))
    assert (header.vocab, header.width) == (words + 2, width)
    corpus = open_corpus(tmp_path / "corpus")
    ids = corpus.stream("train").ids
    assert ids.dtype == width
    assert sorted(ids.tolist()) == list(range(2, words + 2))
    assert corpus.tokenizer.decode(ids.tolist()) == text


@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_every_kind_of_token_comes_back(kind: str, tmp_path: Path) -> None:
    line = "the café is in Köln\n".encode()
    text = line * 40
    config = PrepareConfig(tokenizer=kind, size=300, valid=0.1, test=0.1)
    header = prepared(source_of(text, length=20 * len(line)), tmp_path / "corpus", config)
    corpus = open_corpus(tmp_path / "corpus")
    assert list(header.splits) == ["train", "valid", "test"]
    for name, split in header.splits.items():
        decoded = corpus.tokenizer.decode(corpus.stream(name).ids.tolist())
        assert decoded.split() == text[: split.bytes].split()
        assert split.words == 6 * split.bytes // len(line)
        assert len(corpus.stream(name).ids) == (split.words if kind == "words" else split.tokens)
    assert sum(split.words for split in header.splits.values()) == 6 * 40


def test_words_are_not_counted_where_bytes_are_all_that_is_known(tmp_path: Path) -> None:
    assert prepared(source_of(b"one two\n"), tmp_path / "corpus").splits["train"].words == 0


def test_a_vocabulary_is_found_in_the_training_split_alone(tmp_path: Path) -> None:
    config = PrepareConfig(tokenizer="words", minimum=2, valid=0, test=0.5)
    text = b"a a b b b once\nheld held out\n"
    header = prepared(source_of(text), tmp_path / "corpus", config)
    assert header.vocab == 4
    corpus = open_corpus(tmp_path / "corpus")
    assert corpus.stream("train").ids.tolist() == [3, 3, 2, 2, 2, 1, 0]
    assert corpus.stream("test").ids.tolist() == [1, 1, 1, 0]


def test_a_tokenizer_can_be_brought_along(tmp_path: Path) -> None:
    (tmp_path / "brought.json").write_text(word_tokenizer(["on", "<unk>", "go"]).json())
    config = PrepareConfig(tokenizer="file", tokenizer_file=tmp_path / "brought.json", valid=0, test=0)
    prepared(source_of(b"go on and on"), tmp_path / "corpus", config)
    assert open_corpus(tmp_path / "corpus").stream("train").ids.tolist() == [2, 0, 1, 0]
    nameless = PrepareConfig(tokenizer="file")
    refused(
        "needs a tokenizer.json; name it with --tokenizer-file", source_of(b"go"), tmp_path / "c", nameless
    )


def test_published_splits_are_kept(tmp_path: Path) -> None:
    texts = {"train": b"one", "valid": b"two\nthree\n", "test": b"four"}
    source = Source("it", {name: lambda text=text: pieces_of([text], 4) for name, text in texts.items()})
    header = prepared(source, tmp_path / "corpus", PrepareConfig())
    corpus = open_corpus(tmp_path / "corpus")
    assert {name: corpus.tokenizer.decode(corpus.stream(name).ids) for name in header.splits} == texts
    assert np.fromfile(tmp_path / "corpus" / "ends.bin", dtype="<u8").tolist() == [3, 13, 17]
    assert [split.documents for split in header.splits.values()] == [1, 1, 1]


def test_newlines_are_dropped_and_bytes_sorted_as_the_reference_does(tmp_path: Path) -> None:
    text = b"zb\nab\nb\nazq"  # b thrice; z before a, twice each; q once
    header = prepared(
        source_of(text, length=4), tmp_path / "corpus", WHOLE.model_copy(update={"newlines": False})
    )
    corpus = open_corpus(tmp_path / "corpus")
    assert isinstance(corpus.tokenizer, ByteTokenizer)
    assert corpus.tokenizer.symbols == b"bzaq"
    ids = corpus.stream("train").ids
    assert corpus.tokenizer.decode(ids) == text.replace(b"\n", b"")
    assert (header.vocab, header.splits["train"].bytes) == (4, 8)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="valid 0.5 and test 0.5 leave nothing to train on"):
        PrepareConfig(valid=0.5, test=0.5)
    with pytest.raises(ConfigError, match="newlines are dropped from bytes alone; found tokenizer 'words'"):
        PrepareConfig(tokenizer="words", newlines=False)


def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    words, bpe = (PrepareConfig(tokenizer=kind, valid=0, test=0) for kind in ("words", "bpe"))
    refused("it is empty; there is nothing to prepare", source_of(), folder)
    refused("it is empty", source_of(b""), folder)
    refused("it holds not one token", source_of(b" \t "), folder, words)
    refused(
        "it holds not one token", source_of(b"\n\n"), folder, WHOLE.model_copy(update={"newlines": False})
    )
    refused(r"not UTF-8: found b'\\xff!' after b'so '", source_of(b"so \xff!"), folder, words)
    refused(r"not UTF-8: found b'\\xff!' after b'so '", source_of(b"so \xff!"), folder, bpe)
    late = PrepareConfig(tokenizer="words", valid=0, test=0.1)  # what is wrong comes after the vocabulary
    refused("not UTF-8", source_of(b"fine\n" * 20 + b"\xff\xff\n"), folder, late)


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "precious.txt").write_text("mine")
    refused("corpus exists; nothing was overwritten", source_of(b"text"), tmp_path / "corpus")
    assert (tmp_path / "corpus" / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["tokenizer.json", "corpus.json"])
def test_a_full_disk_leaves_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def full(path: Path, text: str, encoding: str | None = None) -> int:
        if path.name == name:
            raise OSError(28, "No space left on device")
        return real(path, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", full)
    refused("corpus could not be written: .*No space left on device", source_of(b"text"), tmp_path / "corpus")


def test_an_interruption_leaves_nothing_and_a_wreck_is_no_hindrance(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        assert (tmp_path / ".corpus.segue-new").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(source_of(b"text"), tmp_path / "corpus", WHOLE, interrupt)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".corpus.segue-new").mkdir()  # as a machine that lost its power leaves it
    (tmp_path / ".corpus.segue-new" / "ids.bin").write_bytes(b"half")
    prepared(source_of(b"text"), tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_progress_ends_where_the_text_does(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    config = PrepareConfig(tokenizer="words", valid=0, test=0)
    prepare(
        source_of(b"one two\n", b"three\n"),
        tmp_path / "corpus",
        config,
        lambda *values: told.append(cast("tuple[str, int, int]", values)),
    )
    what = "finding the vocabulary"
    assert told == [(what, 8, 14), (what, 14, 14), ("encoding", 8, 14), ("encoding", 14, 14)]


def test_what_is_wrong_with_a_corpus_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    header = folder / "corpus.json"
    refused_text = "has changed since it was prepared, or is gone; prepare it again"

    def wrong(match: str) -> None:
        with pytest.raises(SegueError, match=match) as caught:
            open_corpus(folder)
        assert "\n" not in str(caught.value)

    wrong(r"corpus is no prepared corpus \(it has no corpus.json\)")
    prepared(source_of(b"some text\n"), folder)
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for name in ("ids.bin", "ends.bin", "tokenizer.json"):
        text = whole[folder / name]
        (folder / name).write_bytes(text[:3] + bytes([text[3] ^ 1]) + text[4:])
        wrong(f"{name} {refused_text}")
        (folder / name).unlink()
        wrong(f"{name} {refused_text}")
        (folder / name).write_bytes(text)
    values = json.loads(whole[header])
    header.write_text(json.dumps({**values, "widht": "uint8"}))
    wrong("CorpusHeader has no 'widht'; did you mean 'width'\\?")
    header.write_text(json.dumps({**values, "format": "segue-corpus-9"}))
    wrong("format should be 'segue-corpus-1'; found 'segue-corpus-9'")
    header.write_text("{")
    wrong("corpus.json is no JSON")
    header.write_text("[]")
    wrong("corpus.json should hold an object; found list")
    header.write_bytes(whole[header])
    with pytest.raises(InputError, match="has no split 'valid'; it has train"):
        open_corpus(folder).stream("valid")


def test_the_ends_of_documents_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(source_of(*[b"one\n"] * 20), tmp_path / "corpus", PrepareConfig(valid=0.4, test=0.2))
    corpus, read = open_corpus(tmp_path / "corpus"), np.fromfile
    paths: list[str] = []
    monkeypatch.setattr(np, "fromfile", lambda path, **how: (paths.append(str(path)), read(path, **how))[1])
    first = {name: corpus.stream(name) for name in corpus.header.splits}
    assert all(corpus.stream(name) is stream for name, stream in first.items())
    assert len(paths) == len(first) == 3
    again = open_corpus(tmp_path / "corpus")
    assert again.stream("train") is not first["train"]
    assert again.stream("train").starts.tolist() == first["train"].starts.tolist() == list(range(0, 32, 4))
