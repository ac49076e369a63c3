"""Published sets: known by their checksums, split as published, refused when they are something else."""

import hashlib
import io
import lzma
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from segue.errors import SourceError
from segue.progress import silent
from segue.text import sources
from segue.text.corpus import open_corpus
from segue.text.prepare import PrepareConfig, prepare
from segue.text.published import PUBLISHED, Published, published
from segue.text.sources import Source

TEXT = "one two\nthree ä four\nfive six seven\n".encode()
WORDS = {"train": b" a b \n c \n", "valid": b"d\n", "test": b"e f\n"}  # 5, 2 and 3 tokens


def md5(text: bytes) -> str:
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return buffer.getvalue()


ARCHIVE = zipped({"set/": b"", **{f"set/wiki.{split}.tokens": text for split, text in WORDS.items()}})


@pytest.fixture(autouse=True)
def tiny_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Published("https://example.org/tiny.zip", "", plain=md5(TEXT), splits=(21, 30))
    monkeypatch.setitem(PUBLISHED, "tiny", tiny)
    words = Published("https://example.org/words.zip", md5(ARCHIVE), tokens=(5, 2, 3))
    monkeypatch.setitem(PUBLISHED, "words", words)


def verified(name: str, copy: Path | None) -> tuple[Source, list[str]]:
    told: list[str] = []
    return published(name, copy, told.append), told


def texts(source: Source) -> dict[str, bytes]:
    return {part: b"".join(piece.text for piece in source.parts[part]()) for part in source.parts}


def refused(match: str, name: str, copy: Path | None) -> None:
    with pytest.raises(SourceError, match=match) as caught:
        verified(name, copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["", ".xz", ".zip"])
def test_the_right_file_is_split_where_it_was_published(suffix: str, tmp_path: Path) -> None:
    copy = tmp_path / f"tiny{suffix}"
    copy.write_bytes(
        {"": bytes, ".xz": lzma.compress, ".zip": lambda text: zipped({"tiny": text})}[suffix](TEXT)
    )
    source, told = verified("tiny", copy)
    assert texts(source) == {"train": TEXT[:21], "valid": TEXT[21:30], "test": TEXT[30:]}
    assert texts(source) == texts(source)
    assert (source.name, told) == ("tiny", [f"verifying {copy}"])


def test_each_split_is_one_document_in_pieces_that_tear_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 3)
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 6)
    (tmp_path / "tiny").write_bytes(TEXT)
    source, _ = verified("tiny", tmp_path / "tiny")
    assert texts(source) == {"train": TEXT[:21], "valid": TEXT[21:30], "test": TEXT[30:]}
    for part in source.parts.values():
        pieces = list(part())
        assert [piece.begins for piece in pieces] == [True, *[False] * (len(pieces) - 1)]
        assert len(pieces) > 1
        assert all(piece.text[-1:] in b" \n" for piece in pieces[:-1])


def test_another_file_is_refused_with_both_checksums(tmp_path: Path) -> None:
    copy = tmp_path / "tiny"
    copy.write_bytes(TEXT + b"!")
    refused(f"is not tiny: its MD5 is {md5(TEXT + b'!')}, that of tiny {md5(TEXT)}", "tiny", copy)
    copy.write_bytes(ARCHIVE + b"!")
    refused(f"its MD5 is {md5(ARCHIVE + b'!')}, that of the archive {md5(ARCHIVE)}", "words", copy)


def test_a_copy_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused("nowhere could not be opened", "tiny", tmp_path / "nowhere")
    (tmp_path / "tiny.xz").write_bytes(lzma.compress(TEXT)[:-9])
    refused("tiny.xz could not be read to its end", "tiny", tmp_path / "tiny.xz")


def test_the_right_archive_keeps_its_three_files(tmp_path: Path) -> None:
    (tmp_path / "words.zip").write_bytes(ARCHIVE)
    source, _ = verified("words", tmp_path / "words.zip")
    assert texts(source) == WORDS
    assert all([piece.begins for piece in part()] == [True] for part in source.parts.values())


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir()
    for split, text in files.items():
        (path / f"wiki.{split}.tokens").write_bytes(text)
    return path


def test_an_unpacked_set_is_known_by_its_tokens(tmp_path: Path) -> None:
    source, _ = verified("words", folder_of(tmp_path / "right", WORDS))
    assert texts(source) == WORDS
    wrong = folder_of(tmp_path / "wrong", {**WORDS, "valid": b"d d\n"})
    refused("wiki.valid.tokens is not valid of words: it has 3 tokens, not 2", "words", wrong)
    lacking = folder_of(tmp_path / "lacking", {**WORDS, "trained": b"a"})
    refused("should hold one file for train of words; found 2", "words", lacking)
    (lacking / "wiki.trained.tokens").unlink()
    (lacking / "wiki.test.tokens").unlink()
    refused("should hold one file for test of words; found 0", "words", lacking)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where downloads go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["tiny", "words"])
def test_without_a_network_a_copy_is_asked_for(
    name: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    refused(
        rf"{name} could not be downloaded from https://example.org/{name}.zip \(no route to host\); "
        rf"where there is no network, give a copy: segue prepare {name} --file PATH -o DIR",
        name,
        None,
    )
    assert list(temporary.iterdir()) == []


def test_a_download_is_verified_too(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [ARCHIVE, ARCHIVE[:-1]]
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(answers.pop(0)))
    source, told = verified("words", None)
    assert texts(source) == WORDS
    assert told[0] == "downloading https://example.org/words.zip"
    refused("words.zip is not words: its MD5 is", "words", None)


def test_the_published_sets_can_be_known() -> None:
    for name in ("enwik8", "text8", "wikitext-2", "wikitext-103"):
        known = PUBLISHED[name]
        assert len(known.plain or known.packed) == 32
        assert (known.plain is None) == (known.splits is None) != (known.tokens is None)


def test_a_set_of_few_symbols_has_an_id_for_each_byte_that_occurs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """text8: 26 letters and the blank, without a further option, as its preset wants."""
    assert PUBLISHED["text8"].own_bytes
    text = b"the cat sat on the mat " * 30
    few = Published("https://example.org/few.zip", "", plain=md5(text), splits=(400, 500), own_bytes=True)
    monkeypatch.setitem(PUBLISHED, "few", few)
    (tmp_path / "few").write_bytes(text)
    source, _ = verified("few", tmp_path / "few")
    header = prepare(source, tmp_path / "data", PrepareConfig(), silent)
    assert header.vocab == len(set(text))
    corpus = open_corpus(tmp_path / "data")
    assert corpus.tokenizer.decode(corpus.stream("train").ids) == text[:400]
    assert corpus.header.lossless
