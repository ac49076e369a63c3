"""Text in pieces: they join to what was there, are cut where no token is torn, and what is damaged is named."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segue.errors import SourceError
from segue.text import sources
from segue.text.sources import (
    Piece,
    Source,
    cut_in_pieces,
    file_pieces,
    from_dataset,
    from_files,
    from_folder,
    from_jsonl,
    from_rows,
    open_any,
    standard_library,
)

SMALL = st.tuples(st.integers(1, 9), st.integers(1, 20))
TEXTS = st.text("ab \nä東😀")


def cut(text: bytes, small: tuple[int, int]) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_BYTES", small[0])
        patch.setattr(sources, "MAX_LINE_BYTES", small[1])
        return list(cut_in_pieces(io.BytesIO(text)))


def zipped(text: bytes, *names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("folder/", "folder/text.txt"):
            archive.writestr(name, b"" if name.endswith("/") else text)
    return buffer.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zip": zipped,
}


def refused(match: str, read: Callable[[], object]) -> None:
    with pytest.raises(SourceError, match=match) as caught:
        read()
    assert "\n" not in str(caught.value)


def read(path: Path) -> bytes:
    with open_any(path) as file:
        return file.read()


def documents(source: Source, part: str = "train") -> list[bytes]:
    documents: list[bytes] = []
    for text, begins in source.parts[part]():
        if begins:
            documents.append(b"")
        documents[-1] += text
    return documents


@given(text=st.binary() | TEXTS.map(str.encode), small=SMALL)
@example(text=b"\x80" * 50, small=(3, 7))
def test_pieces_join_to_the_text(text: bytes, small: tuple[int, int]) -> None:
    pieces = cut(text, small)
    assert b"".join(pieces) == text
    assert all(pieces)
    assert all(len(piece) < max(small[1], 4) + 2 * small[0] for piece in pieces)


@given(text=TEXTS, small=SMALL)
def test_pieces_are_cut_behind_lines_else_blanks_else_characters(text: str, small: tuple[int, int]) -> None:
    for piece in cut(text.encode(), small)[:-1]:
        piece.decode()  # whole characters, in any case
        if not piece.endswith(b"\n"):
            assert b"\n" not in piece
            assert piece.endswith(b" ") or b" " not in piece


def test_a_giant_line_is_cut_at_blanks_or_whole_characters() -> None:
    assert cut("ääääää".encode(), (5, 5)) == ["ää".encode()] * 3
    assert cut(b"one two three", (4, 8)) == [b"one two ", b"three"]
    assert cut(b"one two\nthree four\nfive", (100, 100)) == [b"one two\nthree four\n", b"five"]


def test_only_the_wanted_bytes_are_cut() -> None:
    file = io.BytesIO(b"one\ntwo\nthree\n")
    assert list(cut_in_pieces(file, 6)) == [b"one\n", b"tw"]
    assert list(cut_in_pieces(file)) == [b"o\nthree\n"]
    assert list(cut_in_pieces(file)) == []


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_files_are_read_as_they_are_inside(suffix: str, tmp_path: Path) -> None:
    path, text = tmp_path / f"text{suffix}", b"one\ntwo\n" * 1000
    path.write_bytes(PACKERS[suffix](text))
    assert read(path) == text
    source = from_files("it", [path])
    assert documents(source) == [text]
    assert source.size("train") == len(text)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zip"])
def test_a_damaged_file_is_refused(suffix: str, tmp_path: Path) -> None:
    packed = PACKERS[suffix](b"".join(b"%d " % number for number in range(30_000)))
    middle = len(packed) // 2
    turned = bytes(byte ^ 0xFF for byte in packed[middle : middle + 9])
    for damaged in (packed[:middle], packed[:middle] + turned + packed[middle + 9 :], b"rubbish" * 9):
        path = tmp_path / f"text{suffix}"
        path.write_bytes(damaged)
        refused(f"text{suffix} could not be", lambda path=path: documents(from_files("it", [path])))
        refused(f"text{suffix} could not be", lambda path=path: documents(from_jsonl(path, "text")))


def test_an_archive_should_hold_one_file(tmp_path: Path) -> None:
    path = tmp_path / "two.zip"
    path.write_bytes(zipped(b"text", "one.txt", "two.txt"))
    refused("two.zip holds 2 files; unpack it", lambda: read(path))
    path.write_bytes(zipped(b"", "folder/"))
    refused("two.zip holds 0 files", lambda: read(path))


def test_a_locked_archive_is_refused(tmp_path: Path) -> None:
    packed = bytearray(zipped(b"text", "one.txt"))
    packed[6] |= 1  # the flag of encryption, in the file's header and in the archive's list
    packed[packed.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.zip").write_bytes(packed)
    refused("locked.zip could not be opened: .*encrypted", lambda: read(tmp_path / "locked.zip"))


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    refused("nowhere.txt could not be opened: .*No such file", lambda: read(tmp_path / "nowhere.txt"))
    refused("could not be opened: .*directory", lambda: read(tmp_path))


def test_each_file_is_a_document(tmp_path: Path) -> None:
    for name, text in {"a": b"1\n2\n3", "b": b"", "c": b"4\n"}.items():
        (tmp_path / name).write_bytes(text)
    paths = [tmp_path / name for name in "cab"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_BYTES", 2)
        assert list(file_pieces(paths)()) == [
            Piece(b"4\n", begins=True),
            Piece(b"1\n", begins=True),
            Piece(b"2\n", begins=False),
            Piece(b"3", begins=False),
        ]
    source = from_files("it", paths)
    assert source.size("train") == 7
    assert documents(source) == documents(source)  # as often as needed


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/deep/y.txt", "c.md", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.txt").mkdir()
    assert documents(from_folder(tmp_path, "**/*.txt")) == [b"a/deep/y.txt", b"a/z.txt", b"a.txt", b"b.txt"]
    assert documents(from_folder(tmp_path, "*.md")) == [b"c.md"]
    refused(r"no file in .* matches '\*.rst'; choose another --glob", lambda: from_folder(tmp_path, "*.rst"))


def test_each_row_is_a_document(tmp_path: Path) -> None:
    rows = [{"text": "one ä", "id": 1}, {"text": ""}, {"text": "two\n"}]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    source = from_jsonl(path, "text")
    assert documents(source) == ["one ä".encode(), b"two\n"]
    assert source.size("train") == 10


def test_a_giant_row_is_cut_between_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 5)
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 10)
    source = from_rows("rows", lambda: iter([{"text": "東" * 20}, {"text": "a"}]), "text")
    pieces = list(source.parts["train"]())
    assert "".join(piece.text.decode() for piece in pieces) == "東" * 20 + "a"
    assert [piece.begins for piece in pieces] == [True, *[False] * (len(pieces) - 2), True]
    assert max(len(piece.text) for piece in pieces) < 15


def test_what_is_wrong_with_a_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def wrong(line: str, match: str) -> None:
        path.write_text('{"text": "fine"}\n' + line + "\n")
        refused(match, lambda: documents(from_jsonl(path, "text")))

    wrong('{"text": ', r"line 2 of .*rows.jsonl is no JSON: ")
    wrong('{"title": "a", "body": "b"}', "row 2 of .* has no text under 'text'; it has title, body")
    wrong('{"text": 3}', "row 2 of .* has no text under 'text'; it has text")
    wrong('["text"]', "row 2 of .* has no text under 'text'; it has list")
    wrong(r'{"text": "half \ud83d"}', "row 2 of .* holds half a character: .*surrogate")


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the extra is installed")
def test_without_the_extra_its_line_is_shown() -> None:
    refused(
        r"rows.parquet needs the data extra: pip install 'segue-lm\[data\]'",
        lambda: from_dataset("rows.parquet", "text"),
    )


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of 200 files, with what does not belong to it."""
    root = tmp_path / "site-packages" / "python"  # what lies above it does not matter
    for number in range(200):
        path = root / f"room{number % 7}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {number}\n")
    for name in (
        "site-packages/a.py",
        "room1/__pycache__/b.py",
        "dist-packages/deep/c.py",
        "room2/notes.txt",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not of the library")
    (root / "latin.py").write_bytes(b"# caf\xe9\n")
    (root / "empty.py").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(root)})
    return root


def test_the_standard_library_is_split_once_and_for_all(library: Path) -> None:
    first, again = standard_library(), standard_library()
    parts = {part: documents(first, part) for part in first.parts}
    assert list(parts) == ["train", "valid", "test"]
    assert parts == {part: documents(again, part) for part in again.parts}
    assert sorted(text for part in parts.values() for text in part) == sorted(
        b"file %d\n" % number for number in range(200)
    )
    assert 0 < len(parts["valid"]) < 30
    assert 0 < len(parts["test"]) < 30


def test_a_file_of_the_library_stays_in_its_split(library: Path) -> None:
    before = documents(standard_library(), "valid")
    for path in library.rglob("file*[02468].py"):
        path.unlink()
    after = documents(standard_library(), "valid")
    assert after == [text for text in before if int(text.split()[1]) % 2]


def test_the_standard_library_at_hand_is_pythons_own() -> None:
    source = standard_library()
    held_out = b"".join(piece.text for piece in source.parts["valid"]())
    assert len(held_out) > 100_000
    assert b"import" in held_out
    held_out.decode()


def test_a_pipe_can_be_read_twice_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
from segue.text.sources import from_pipe
source = from_pipe()
first, again = (b"".join(piece.text for piece in source.parts["train"]()) for _ in range(2))
assert first == again
print(len(first), source.size("train"), sum(piece.begins for piece in source.parts["train"]()))
"""
    text = b"one\ntwo \xff\n" * 200_000
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=text,
        capture_output=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout.split() == [b"%d" % len(text), b"%d" % len(text), b"1"]
    assert list(tmp_path.iterdir()) == []


def test_a_row_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sources, "MAX_ROW_BYTES", 100)
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "short"}\n{"text": "' + b"x" * 200)
    pieces = sources.from_jsonl(tmp_path / "rows.jsonl", "text").parts["train"]()
    assert next(pieces).text == b"short"
    with pytest.raises(SourceError, match=r"line 2 of .* has more than .* MiB"):
        next(pieces)


def test_an_archive_that_lies_is_refused_in_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("text.txt", b"text")
    whole = (tmp_path / "text.zip").read_bytes()
    entry = whole.rfind(b"PK\x01\x02")
    lies = {
        8: b"\x01\x00",
        10: b"\x63\x00",
        20: b"\x01",
        42: b"\xff\xff",
    }  # flags, method, size, where it begins
    utf_8 = {8: b"\x00\x08", 46: b"\xff"}  # a name that is none
    for lie in (*({place: text} for place, text in lies.items()), utf_8):
        text = bytearray(whole)
        for place, part in lie.items():
            text[entry + place : entry + place + len(part)] = part
        (tmp_path / "text.zip").write_bytes(text)
        with (
            pytest.raises(SourceError, match="could not be"),
            sources.open_any(tmp_path / "text.zip") as file,
        ):
            file.read()


def test_what_takes_too_much_memory_to_unpack_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.xz").write_bytes(lzma.compress(b"text"))

    def greedy(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(lzma.LZMAFile, "read", greedy)
    with pytest.raises(SourceError, match="more memory"), sources.open_any(tmp_path / "text.xz") as file:
        file.read()
