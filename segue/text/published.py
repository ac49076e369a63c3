"""The data sets of the papers: addresses, checksums and splits.

They are downloaded, or read from a copy that `--file` names; both are verified.
"""

import hashlib
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from segue.errors import SourceError
from segue.text.copies import SplitFiles, split_pieces
from segue.text.sources import (
    BLOCK_BYTES,
    Piece,
    Pieces,
    Source,
    WordConvention,
    cut_in_pieces,
    document,
    open_any,
)

MILLION = 10**6

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Published:
    """A data set that others have published: one file that is cut into splits, or files for each split."""

    url: str
    packed: str = ""  # MD5 of the archive at the address, if it is known
    plain: str | None = None  # MD5 of the only file in the archive
    splits: tuple[int, int] | None = None  # byte offsets in that file at which valid and test begin
    own_bytes: bool = False  # its published vocabulary is the bytes that occur
    files: Mapping[str, SplitFiles] = field(default_factory=dict)  # of each split
    tokens: Mapping[str, int] = field(default_factory=dict)  # of a split: words plus one symbol per line
    words: WordConvention | None = None  # its tokens are words


def _three(*names: str) -> dict[str, SplitFiles]:
    """One file for each split."""
    return {split: SplitFiles(tuple(name.format(split) for name in names)) for split in SPLITS}


PUBLISHED = {
    "enwik8": Published(
        url="http://mattmahoney.net/dc/enwik8.zip",
        plain="a1fa5ffddb56f4953e226637dabbb36a",
        splits=(90 * MILLION, 95 * MILLION),
    ),
    "text8": Published(
        url="http://mattmahoney.net/dc/text8.zip",
        plain="3bea1919949baf155f99411df5fada7e",
        splits=(90 * MILLION, 95 * MILLION),
        own_bytes=True,  # 26 letters and the blank
    ),
    "wikitext-2": Published(
        url="https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",
        packed="542ccefacc6c27f945fb54453812b3cd",
        files=_three("wiki.{}.tokens", "{}.txt"),
        tokens={"train": 2_088_628, "valid": 217_646, "test": 245_569},
        words=WordConvention(vocab=33_278),
    ),
    "wikitext-103": Published(
        url="https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
        packed="9ddaacaf6af0710eda8c456decff7832",
        files=_three("wiki.{}.tokens", "{}.txt"),
        tokens={"train": 103_227_021, "valid": 217_646, "test": 245_569},
        words=WordConvention(vocab=267_735),
    ),
    "ptb": Published(
        url="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        files=_three("ptb.{}.txt", "{}.txt"),
        tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
        words=WordConvention(vocab=10_000),
    ),
    "lm1b": Published(
        url="http://www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz",
        files={
            "train": SplitFiles(("news.en-000??-of-00100",), count=99),
            "valid": SplitFiles(("news.en.heldout-00001-of-00050",)),
            "test": SplitFiles(("news.en.heldout-00000-of-00050",)),
        },
        tokens={"test": 159_658},
        words=WordConvention(minimum=3, boundary="<S>", unknown="<UNK>", vocab=793_470),
    ),
}
"""lm1b is the One Billion Word benchmark. Results are of the first part of its held-out text; the second validates."""


def published(name: str, copy: Path | None, report: Callable[[str], None]) -> Source:
    """A published data set, from a copy or downloaded; it is verified first."""
    known = PUBLISHED[name]
    path = copy if copy is not None else _download(name, known, report)
    report(f"verifying {path}")
    if known.plain is not None:
        return _one_file(name, known, path)
    return _split_files(name, known, path)


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


def _split_files(name: str, known: Published, path: Path) -> Source:
    parts = split_pieces(name, path, known.files)
    for split, tokens in known.tokens.items():
        count = sum(len(piece.text.split()) + piece.text.count(b"\n") for piece in parts[split]())
        if count != tokens:
            raise SourceError(
                f"{split} in {path} is not {split} of {name}: it has {count:,} tokens, not {tokens:,}"
            )
    return Source(name, parts, words=known.words)


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
    if known.packed:
        with target.open("rb") as file:
            digest = _md5(file)
        if digest != known.packed:
            raise SourceError(
                f"{target} is not {name}: its MD5 is {digest}, that of the archive {known.packed}"
            )
    return target
