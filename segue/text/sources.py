"""Sources of text: files, folders, pipes, rows. Text is read in pieces, so that memory use stays constant.

A piece is at most a few MiB of bytes. It ends after a line if possible, else after a space, else after a character.
`begins` marks the first piece of a document.
"""

import bz2
import gzip
import io
import lzma
import struct
import sys
import sysconfig
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from segue.errors import SourceError
from segue.text.parsing import parse_json

READ_ERRORS = (
    *(OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile),
    *(RuntimeError, UnicodeDecodeError, struct.error),  # of zip: encrypted or unknown, names, sizes that lie
)
"""What the libraries raise for a damaged file, or one of another format than its name says."""

MIB = 2**20

BLOCK_BYTES = MIB
"""Bytes that are read from a file at once."""

COMPRESSED = (".gz", ".xz", ".bz2", ".zip")
"""Suffixes of compressed files."""

MAX_LINE_BYTES = 4 * MIB
"""A longer line is cut into several pieces."""

MAX_ROW_BYTES = 64 * MIB
"""A longer row or sentence is refused, because all of it has to be in memory."""


class Piece(NamedTuple):
    """A contiguous part of one document."""

    text: bytes
    begins: bool


Pieces = Callable[[], Iterator[Piece]]
"""A text as a function: each call reads it from its beginning."""


class WordConvention(NamedTuple):
    """How a data set of words was published."""

    minimum: int = 1  # a rarer word is unknown
    boundary: str = "<eos>"  # the symbol at the end of a line
    unknown: str = "<unk>"
    vocab: int = 0  # the published vocabulary size, if there is one


@dataclass(frozen=True)
class Source:
    """Text by the names of its splits. If `train` is the only one, `prepare` cuts the other splits from it."""

    name: str
    parts: Mapping[str, Pieces]
    sizes: Mapping[str, int] | None = None  # bytes of each split; None: known only after reading
    own_bytes: bool = False  # as bytes, it has an id for each byte that occurs, not for all 256
    words: WordConvention | None = None  # its published tokens are words

    def size(self, part: str) -> int:
        if self.sizes is not None:
            return self.sizes[part]
        return sum(len(piece.text) for piece in self.parts[part]())


def cut_in_pieces(file: IO[bytes], size: int = sys.maxsize) -> Iterator[bytes]:
    """The next `size` bytes of the file in pieces of a few MiB, cut between words or lines if possible."""
    rest = b""
    while block := file.read(min(BLOCK_BYTES, size)):
        size -= len(block)
        rest += block
        end = rest.rfind(b"\n") + 1
        if not end and len(rest) >= MAX_LINE_BYTES:
            end = rest.rfind(b" ") + 1 or _whole_characters(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _whole_characters(text: bytes) -> int:
    """The number of bytes before the last UTF-8 character, which may be incomplete (all bytes if it is not UTF-8)."""
    for back in range(1, min(4, len(text)) + 1):
        if text[-back] & 0b1100_0000 != 0b1000_0000:  # the first byte of the last character
            return len(text) - back
    return len(text)


def document(texts: Iterator[bytes]) -> Iterator[Piece]:
    """The texts as pieces of one document."""
    return (Piece(text, number == 0) for number, text in enumerate(texts))


@contextmanager
def open_any(path: Path) -> Iterator[IO[bytes]]:
    """Open a plain, gz, xz, bz2 or zip file (with one member), decompressed. Damage may show only at the end."""
    try:
        file = _opened(path)
    except READ_ERRORS as error:
        raise SourceError(f"{path} could not be opened: {error}") from None
    try:
        with file:
            yield file
    except READ_ERRORS as error:
        raise SourceError(f"{path} could not be read to its end: {error}") from None
    except MemoryError:  # an xz file sets how much memory it needs
        raise SourceError(
            f"{path} needs more memory to unpack than there is; unpack it on another machine"
        ) from None


def rows_of(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The lines of an open file. Each line must fit into memory."""
    for number, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 1), b""), start=1):
        if len(line) > MAX_ROW_BYTES:
            raise SourceError(
                f"line {number} of {path} has more than {MAX_ROW_BYTES // MIB} MiB; is it the right file?"
            )
        yield line


def _opened(path: Path) -> IO[bytes]:
    match path.suffix:
        case ".gz":
            return cast("IO[bytes]", gzip.open(path))
        case ".xz":
            return lzma.open(path)
        case ".bz2":
            return bz2.open(path)
        case ".zip":
            with zipfile.ZipFile(path) as archive:  # the member keeps the file open
                members = [name for name in archive.namelist() if not name.endswith("/")]
                if len(members) != 1:
                    raise SourceError(
                        f"{path} holds {len(members)} files; unpack it and name the one you mean"
                    )
                return archive.open(members[0])
    return path.open("rb")


def has_rows(path: Path) -> bool:
    """Whether the file has rows (JSONL or Parquet), compressed or not; told by its name."""
    plain = path.with_suffix("") if path.suffix in COMPRESSED else path
    return plain.suffix in (".jsonl", ".parquet")


def file_pieces(paths: Sequence[Path]) -> Pieces:
    """The pieces of several files; each file is a document."""

    def pieces() -> Iterator[Piece]:
        for path in paths:
            with open_any(path) as file:
                yield from document(cut_in_pieces(file))

    return pieces


def from_files(name: str, paths: Sequence[Path]) -> Source:
    compressed = any(path.suffix in COMPRESSED for path in paths)
    sizes = None if compressed else {"train": sum(path.stat().st_size for path in paths)}
    return Source(name, {"train": file_pieces(paths)}, sizes)


def from_folder(folder: Path, pattern: str) -> Source:
    """The files in a folder that match a glob pattern, sorted by path."""
    paths = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not paths:
        raise SourceError(f"no file in {folder} matches {pattern!r}; choose another --glob")
    return from_files(f"{folder} ({pattern})", paths)


def from_pipe() -> Source:
    """Standard input, copied to a temporary file because some tokenizers read it twice."""
    spool = tempfile.NamedTemporaryFile(prefix="segue-", suffix=".txt")  # noqa: SIM115 (lives as long as the source)
    while block := sys.stdin.buffer.read(BLOCK_BYTES):
        spool.write(block)
    spool.flush()
    read_spool = file_pieces([Path(spool.name)])

    def pieces() -> Iterator[Piece]:
        assert not spool.closed
        yield from read_spool()

    return Source("standard input", {"train": pieces}, {"train": Path(spool.name).stat().st_size})


def from_rows(name: str, rows: Callable[[], Iterator[Any]], column: str) -> Source:
    """One column of rows; each row is a document."""

    def pieces() -> Iterator[Piece]:
        for number, row in enumerate(rows(), start=1):
            if not isinstance(row, dict) or not isinstance(row.get(column), str):
                keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
                raise SourceError(f"row {number} of {name} has no text under '{column}'; it has {keys}")
            try:
                text = row[column].encode()
            except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
                raise SourceError(f"row {number} of {name} holds half a character: {error}") from None
            yield from document(cut_in_pieces(io.BytesIO(text)))

    return Source(name, {"train": pieces})


def from_jsonl(path: Path, column: str) -> Source:
    """A file with one JSON object per line."""

    def rows() -> Iterator[Any]:
        with open_any(path) as file:
            for number, line in enumerate(rows_of(file, path), start=1):
                yield parse_json(line, f"line {number} of {path}")

    return from_rows(str(path), rows, column)


def from_dataset(name: str, column: str) -> Source:
    """A Parquet file, or a data set of the Hugging Face hub. Needs the extra `data`."""
    try:
        from datasets import load_dataset  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise SourceError(f"{name} needs the data extra: pip install 'segue-lm[data]'") from None

    def rows() -> Iterator[Any]:
        what = ("parquet", name) if name.endswith(".parquet") else (name, None)
        try:
            dataset = load_dataset(what[0], data_files=what[1], split="train", streaming=True)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise SourceError(
                f"{name} is no Parquet file, and no data set that can be loaded: {reason}"
            ) from None
        return iter(dataset)

    return from_rows(name, rows, column)


def standard_library() -> Source:
    """Python's standard library: each file is a document. About one in twenty is in valid, and as many in test."""
    root = Path(sysconfig.get_paths()["stdlib"])
    outside = {"site-packages", "dist-packages", "__pycache__"}
    names = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if not outside & set(path.relative_to(root).parts) and _is_text(path)
    )
    parts: dict[str, list[Path]] = {"train": [], "valid": [], "test": []}
    for name in names:  # by a hash of the name: a file keeps its split when other files are added
        draw = sha256(name.encode()).digest()[0] % 20
        parts["valid" if draw == 0 else "test" if draw == 1 else "train"].append(root / name)
    return Source("stdlib", {part: file_pieces(paths) for part, paths in parts.items()})


def _is_text(path: Path) -> bool:
    try:
        return bool(path.read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError):
        return False
