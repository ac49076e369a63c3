"""Prepared text and pairs that were made or altered by someone else: what cannot be read with is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from segue.checksums import file_checksum
from segue.errors import SegueError
from segue.text.corpus import open_corpus
from segue.text.pairs import open_pairs

Change = Callable[[dict[str, Any]], object]


def altered(source: Path, folder: Path, header: str, change: Change | None = None, **files: bytes) -> Path:
    """A copy with other files or another header, and with checksums that are right again."""
    copytree(source, folder)
    for name, text in files.items():
        (folder / f"{name}.bin").write_bytes(text)
    values = json.loads((folder / header).read_text())
    values["checksums"] = {name: file_checksum(folder / name) for name in values["checksums"]}
    if change is not None:
        change(values)
    (folder / header).write_text(json.dumps(values))
    return folder


def numbers(kind: str, *values: int) -> bytes:
    return np.array(values, dtype=kind).tobytes()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda header: header["splits"]["valid"].update(begin=0), "the splits overlap"),
        (lambda header: header["splits"]["train"].update(begin=9, end=3), "end before they begin"),
        (lambda header: header["splits"]["test"].update(end=10**9), "tokens and the splits 1,000,000,000"),
        (lambda header: header.update(vocab=255), "has 255 symbols and its tokenizer 256"),
        (lambda header: header["checksums"].clear(), "has changed since it was prepared, or is gone"),
        (lambda header: header["checksums"].update({"../text.txt": ""}), "or is gone"),
        (lambda header: header["checksums"].update({"x" * 5000: ""}), "or is gone"),
    ],
)
def test_a_corpus_that_lies_is_refused(change: Change, complaint: str, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SegueError, match=complaint):
        open_corpus(altered(corpus, tmp_path / "altered", "corpus.json", change))


@pytest.mark.parametrize(
    ("ends", "complaint"),
    [
        (numbers("<u8", 9, 3), "ascending offsets"),
        (numbers("<u8", 3, 10**12), "ascending offsets"),
        (numbers("<u8", 2**64 - 1), "ascending offsets"),
        (b"half", "4 bytes, which is no multiple of 8"),
    ],
)
def test_documents_end_in_order_and_inside(ends: bytes, complaint: str, corpus: Path, tmp_path: Path) -> None:
    opened = open_corpus(altered(corpus, tmp_path / "altered", "corpus.json", ends=ends))
    with pytest.raises(SegueError, match=complaint):
        opened.stream("train")


def test_ids_are_those_of_the_vocabulary(corpus: Path, tmp_path: Path) -> None:
    count = len(np.fromfile(corpus / "ids.bin", dtype=np.uint8))
    wide = numbers("uint16", *[0] * (count - 1), 256)
    change: Change = lambda header: header.update(width="uint16")  # noqa: E731
    opened = open_corpus(altered(corpus, tmp_path / "altered", "corpus.json", change, ids=wide))
    assert len(opened.stream("train").ids)
    with pytest.raises(SegueError, match="holds the id 256, and its vocabulary ends at 255"):
        opened.stream("test")


@pytest.mark.parametrize(("ids", "complaint"), [(b"", "holds 0 tokens"), (b"odd", "no multiple of 2")])
def test_ids_are_whole_and_enough(ids: bytes, complaint: str, corpus: Path, tmp_path: Path) -> None:
    change: Change = lambda header: header.update(width="uint16")  # noqa: E731
    with pytest.raises(SegueError, match=complaint):
        open_corpus(altered(corpus, tmp_path / "altered", "corpus.json", change, ids=ids))


@pytest.mark.parametrize(
    ("change", "files", "complaint"),
    [
        (lambda header: header["splits"]["valid"].update(begin=0), {}, "the splits overlap"),
        (lambda header: header["splits"].pop("train"), {}, "no pairs to train on"),
        (lambda header: header.update(vocab=9), {}, "has 9 symbols, start and end included"),
        (lambda header: header.update(source_vocab=300), {}, "source-tokenizer.json has changed"),
        (lambda header: header["splits"]["valid"].update(end=9999), {}, "9,999 pairs have twice as many"),
        (None, {"ends": numbers("<u8", 3)}, "the ends of 1 sides"),
        (None, {"ends": numbers("<u8", 9, 3)}, "ascending offsets"),
        (None, {"ids": b"odd"}, "no multiple of 4"),
    ],
)
def test_pairs_that_lie_are_refused(
    change: Change | None, files: dict[str, bytes], complaint: str, pairs: Path, tmp_path: Path
) -> None:
    with pytest.raises(SegueError, match=complaint):
        open_pairs(altered(pairs, tmp_path / "altered", "pairs.json", change, **files))


def test_ids_of_pairs_are_those_of_the_vocabulary(pairs: Path, tmp_path: Path) -> None:
    ids = np.fromfile(pairs / "ids.bin", dtype="<u4")
    ids[3] = open_pairs(pairs).target.size  # the start, which is no text
    with pytest.raises(SegueError, match="holds the id 270, and its vocabulary ends at 269"):
        open_pairs(altered(pairs, tmp_path / "altered", "pairs.json", ids=ids.tobytes()))


@pytest.mark.parametrize("opened", [open_corpus, open_pairs])
def test_a_name_that_is_too_long_is_no_folder(opened: Callable[[Path], object]) -> None:
    with pytest.raises(SegueError):
        opened(Path("a" * 5000))
