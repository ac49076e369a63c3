"""Published sets: known by their checksums, split as published, refused when they are something else."""

import gc
import hashlib
import io
import lzma
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from segue.errors import SourceError
from segue.presets import preset
from segue.progress import silent
from segue.text import sources
from segue.text.copies import SplitFiles
from segue.text.corpus import open_corpus
from segue.text.prepare import PrepareConfig, prepare
from segue.text.published import PUBLISHED, Published, published
from segue.text.sources import Source, WordConvention

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
    words = Published(
        "https://example.org/words.zip",
        md5(ARCHIVE),
        files={split: SplitFiles((f"wiki.{split}.tokens", f"{split}.txt")) for split in WORDS},
        tokens={"train": 5, "valid": 2, "test": 3},
        words=WordConvention(vocab=5),
    )
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
    copy.write_bytes(zipped({f"wiki.{split}.tokens": b"a\n" for split in WORDS}))
    refused("train in .* is not train of words: it has 2 tokens, not 5", "words", copy)


def test_a_copy_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused("nowhere could not be opened", "tiny", tmp_path / "nowhere")
    (tmp_path / "tiny.xz").write_bytes(lzma.compress(TEXT)[:-9])
    refused("tiny.xz could not be read to its end", "tiny", tmp_path / "tiny.xz")


def tarred(members: dict[str, bytes], mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar", "tgz"])
def test_an_archive_keeps_its_three_files_whatever_surrounds_them(kind: str, tmp_path: Path) -> None:
    members = {"set/readme.txt": b"x", **{f"set/deep/wiki.{split}.tokens": WORDS[split] for split in WORDS}}
    packed = zipped(members) if kind == "zip" else tarred(members, "w:gz" if kind == "tgz" else "w")
    (tmp_path / f"words.{kind}").write_bytes(packed)
    source, _ = verified("words", tmp_path / f"words.{kind}")
    assert texts(source) == texts(source) == WORDS
    assert all([piece.begins for piece in part()] == [True] for part in source.parts.values())


def test_an_archive_writes_nothing_outside_its_own_folder(temporary: Path) -> None:
    members = {f"../../{split}.txt": text for split, text in WORDS.items()}
    for kind, packed in (("zip", zipped(members)), ("tar", tarred(members, "w"))):
        (temporary / kind).write_bytes(packed)
        assert texts(verified("words", temporary / kind)[0]) == WORDS
    gc.collect()
    assert sorted(path.name for path in temporary.iterdir()) == ["tar", "zip"]
    assert not (temporary.parent / "train.txt").exists()


def test_a_copy_that_is_neither_folder_nor_archive_is_refused(tmp_path: Path) -> None:
    refused("there is no .*; words is expected as a folder or an archive", "words", tmp_path / "nowhere")
    (tmp_path / "plain").write_bytes(TEXT)
    refused("plain could not be unpacked", "words", tmp_path / "plain")
    (tmp_path / "half").write_bytes(tarred({"train.txt": b"a" * 9999}, "w:gz")[:-20])
    refused("half could not be unpacked", "words", tmp_path / "half")


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_bytes(text)
    return path


def test_an_unpacked_set_is_known_by_its_tokens(tmp_path: Path) -> None:
    named = {f"wiki.{split}.tokens": text for split, text in WORDS.items()}
    assert texts(verified("words", folder_of(tmp_path / "right", named))[0]) == WORDS
    short = {f"{split}.txt.xz": lzma.compress(text) for split, text in WORDS.items()}
    assert texts(verified("words", folder_of(tmp_path / "short", short))[0]) == WORDS
    wrong = folder_of(tmp_path / "wrong", {**named, "wiki.valid.tokens": b"d d\n"})
    refused("valid in .* is not valid of words: it has 3 tokens, not 2", "words", wrong)
    twice = folder_of(tmp_path / "twice", named)
    folder_of(twice / "again", {"wiki.train.tokens": b"a"})
    refused("should hold one file for train of words; found 2", "words", twice)
    del named["wiki.test.tokens"]
    lacking = folder_of(tmp_path / "lacking", named)
    refused("one file for test of words; found 0; .* with .*wiki.test.tokens or test.txt", "words", lacking)


def test_files_of_one_split_are_one_document_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The One Billion Word benchmark: <S> ends a sentence, rare words are <UNK>, no file of train may be missing."""
    known = PUBLISHED["lm1b"]
    train = replace(known.files["train"], count=2)
    small = replace(known, files={**known.files, "train": train}, tokens={"test": 4})
    monkeypatch.setitem(PUBLISHED, "lm1b", small)
    training, heldout = (f"{kind}-monolingual.tokenized.shuffled" for kind in ("training", "heldout"))
    members = {
        f"r13/{training}/news.en-00002-of-00100": b"the sea once\nthe <UNK>\n",
        f"r13/{training}/news.en-00001-of-00100": b"the sea sea\nsea\n",
        f"r13/{heldout}/news.en.heldout-00001-of-00050": b"the land\n",
        f"r13/{heldout}/news.en.heldout-00000-of-00050": b"sea\nthe\n",
        f"r13/{heldout}/news.en.heldout-00002-of-00050": b"unused\n",
    }
    (tmp_path / "lm1b.tar.gz").write_bytes(tarred(members, "w:gz"))
    source, _ = verified("lm1b", tmp_path / "lm1b.tar.gz")
    assert source.words is not None
    config = PrepareConfig(tokenizer="words", minimum=source.words.minimum)
    header = prepare(source, tmp_path / "data", config, silent)
    corpus = open_corpus(tmp_path / "data")
    assert header.vocab == 4  # <S>, <UNK>, sea, the
    assert corpus.stream("train").ids.tolist() == [3, 2, 2, 0, 2, 0, 3, 2, 1, 0, 3, 1, 0]
    assert corpus.stream("valid").ids.tolist() == [3, 1, 0]
    assert corpus.stream("test").ids.tolist() == [2, 0, 3, 0]
    assert corpus.tokenizer.decode([2, 0, 3]) == b"sea\n the"
    assert [split.documents for split in header.splits.values()] == [1, 1, 1]
    monkeypatch.setitem(PUBLISHED, "lm1b", known)
    refused("should hold 99 files for train of lm1b; found 2", "lm1b", tmp_path / "lm1b.tar.gz")


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
    for name in ("enwik8", "text8", "wikitext-2", "wikitext-103", "ptb", "lm1b"):
        known = PUBLISHED[name]
        if known.plain is not None:
            assert len(known.plain) == 32
            assert known.splits is not None
        else:
            assert list(known.files) == ["train", "valid", "test"]
            assert "test" in known.tokens
            assert known.words is not None


@pytest.mark.parametrize(
    ("name", "presets"), [("wikitext-103", ("wt103-standard", "wt103-large")), ("lm1b", ("lm1b-large",))]
)
def test_presets_have_the_published_vocabulary_of_their_set(name: str, presets: tuple[str, ...]) -> None:
    words = PUBLISHED[name].words
    assert words is not None
    assert {preset(one).recipe.model.vocab for one in presets} == {words.vocab}


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
