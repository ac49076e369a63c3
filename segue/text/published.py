"""The data sets of the papers: addresses, checksums and splits.

They are downloaded, or read from a copy that `--file` names; both are verified.
"""

import hashlib
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from segue.errors import SourceError
from segue.text.sources import (
    BLOCK_BYTES,
    Piece,
    Pieces,
    Source,
    cut_in_pieces,
    document,
    file_pieces,
    open_any,
)

MILLION = 10**6


@dataclass(frozen=True)
class Published:
    """A data set that others have published."""

    url: str
    packed: str  # MD5 of the archive at the address
    plain: str | None = None  # MD5 of the only file in the archive
    splits: tuple[int, int] | None = None  # byte offsets in that file at which valid and test begin
    own_bytes: bool = False  # its published vocabulary is the bytes that occur
    tokens: tuple[int, int, int] | None = None  # words plus one <eos> per line, in each of three files


PUBLISHED = {
    "enwik8": Published(
        url="http://mattmahoney.net/dc/enwik8.zip",
        packed="",
        plain="a1fa5ffddb56f4953e226637dabbb36a",
        splits=(90 * MILLION, 95 * MILLION),
    ),
    "text8": Published(
        url="http://mattmahoney.net/dc/text8.zip",
        packed="",
        plain="3bea1919949baf155f99411df5fada7e",
        splits=(90 * MILLION, 95 * MILLION),
        own_bytes=True,  # 26 letters and the blank
    ),
    "wikitext-2": Published(
        url="https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",
        packed="542ccefacc6c27f945fb54453812b3cd",
        tokens=(2_088_628, 217_646, 245_569),
    ),
    "wikitext-103": Published(
        url="https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
        packed="9ddaacaf6af0710eda8c456decff7832",
        tokens=(103_227_021, 217_646, 245_569),
    ),
}


def published(name: str, copy: Path | None, report: Callable[[str], None]) -> Source:
    """A published data set, from a copy or downloaded; it is verified first."""
    known = PUBLISHED[name]
    path = copy if copy is not None else _download(name, known, report)
    report(f"verifying {path}")
    if known.plain is not None:
        return _one_file(name, known, path)
    return _three_files(name, known, path)


def _one_file(name: str, known: Published, path: Path) -> Source:
    assert known.splits is not None
    with open_any(path) as file:
        digest = _md5(file)
    if digest != known.plain:
        raise SourceError(f"{path} is not {name}: its MD5 is {digest}, that of {name} {known.plain}")
    first, second = known.splits
    parts: dict[str, Pieces] = {
        "train": _range_pieces(path, 0, first),
        "valid": _range_pieces(path, first, second - first),
        "test": _range_pieces(path, second, sys.maxsize),
    }
    return Source(name, parts, own_bytes=known.own_bytes)


def _range_pieces(path: Path, begin: int, size: int) -> Pieces:
    def pieces() -> Iterator[Piece]:
        with open_any(path) as file:
            file.seek(begin)
            yield from document(cut_in_pieces(file, size))

    return pieces


def _three_files(name: str, known: Published, path: Path) -> Source:
    if path.is_file():
        with path.open("rb") as file:
            digest = _md5(file)
        if digest != known.packed:
            raise SourceError(
                f"{path} is not {name}: its MD5 is {digest}, that of the archive {known.packed}"
            )
        return Source(name, {split: _member_pieces(path, split) for split in ("train", "valid", "test")})
    parts: dict[str, Pieces] = {}
    assert known.tokens is not None
    for split, tokens in zip(("train", "valid", "test"), known.tokens, strict=True):
        files = sorted(file for file in path.glob(f"*{split}*") if file.is_file())
        if len(files) != 1:
            raise SourceError(f"{path} should hold one file for {split} of {name}; found {len(files)}")
        parts[split] = file_pieces(files)
        count = sum(len(piece.text.split()) + piece.text.count(b"\n") for piece in parts[split]())
        if count != tokens:
            raise SourceError(f"{files[0]} is not {split} of {name}: it has {count:,} tokens, not {tokens:,}")
    return Source(name, parts)


def _member_pieces(path: Path, split: str) -> Pieces:
    def pieces() -> Iterator[Piece]:
        with zipfile.ZipFile(path) as archive:
            member = next(name for name in archive.namelist() if f".{split}." in name)
            with archive.open(member) as file:
                yield from document(cut_in_pieces(file))

    return pieces


def _md5(file: IO[bytes]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _download(name: str, known: Published, report: Callable[[str], None]) -> Path:
    target = Path(tempfile.mkdtemp(prefix="segue-")) / known.url.rsplit("/", 1)[-1]
    report(f"downloading {known.url}")
    try:
        with urllib.request.urlopen(known.url, timeout=30) as answer, target.open("wb") as file:  # noqa: S310
            while block := answer.read(BLOCK_BYTES):
                file.write(block)
    except (urllib.error.URLError, OSError) as error:
        shutil.rmtree(target.parent, ignore_errors=True)
        reason = getattr(error, "reason", error)
        raise SourceError(
            f"{name} could not be downloaded from {known.url} ({reason}); "
            f"where there is no network, give a copy: segue prepare {name} --file PATH -o DIR"
        ) from None
    return target
