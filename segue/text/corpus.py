"""A corpus: token ids on disk, memory-mapped, with splits and document ends.

    corpus.json      what it is: sizes, splits, checksums
    ids.bin          all tokens, in the narrowest width that fits
    ends.bin         where documents end, as 64-bit places in ids.bin
    tokenizer.json   how to read them

Splits are ranges of ids.bin, train first.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from segue.config import Settings
from segue.errors import InputError, SourceError
from segue.text.parsing import read_object
from segue.text.tokenizer import Tokenizer, load_tokenizer

HEADER, IDS, ENDS, TOKENIZER = "corpus.json", "ids.bin", "ends.bin", "tokenizer.json"


class Split(Settings):
    """A range of tokens, and what it was made of."""

    begin: NonNegativeInt
    end: NonNegativeInt
    bytes: NonNegativeInt
    words: NonNegativeInt  # between blanks, with one more for every line; 0 where bytes are all that is known
    documents: NonNegativeInt

    @property
    def tokens(self) -> int:
        return self.end - self.begin


def _by_kind(header: dict[str, Any]) -> bool:
    """Whether nothing can be lost, for a corpus that was prepared before this was checked."""
    return header["tokenizer"] in ("bytes", "bpe")


class CorpusHeader(Settings):
    """What corpus.json holds."""

    format: Literal["segue-corpus-1"] = "segue-corpus-1"
    source: str
    tokenizer: str  # its kind
    lossless: bool = Field(default_factory=_by_kind)  # every text came back from its ids, byte by byte
    vocab: PositiveInt
    width: Literal["uint8", "uint16", "uint32"]
    splits: dict[str, Split]
    checksums: dict[str, str]  # SHA-256 of the files beside it


@dataclass(frozen=True, eq=False)
class Stream:
    """One split: its ids, and where its documents begin."""

    ids: np.ndarray[Any, Any]  # memory-mapped
    starts: np.ndarray[Any, Any]  # ascending; the first is 0
    split: Split
    tokenizer: Tokenizer
    lossless: bool = True  # the ids are the original text, byte by byte

    def begins(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whether a document begins at each of the places. (`np.isin` would sort all documents every time.)"""
        newest = (
            np.searchsorted(self.starts, places, side="right") - 1
        )  # of a place before the first: the last
        found: np.ndarray[Any, Any] = self.starts[newest] == places
        return found

    def text(self, begin: int, end: int) -> bytes:
        """What a range of tokens stands for."""
        return self.tokenizer.decode(self.ids[begin:end].tolist())


@dataclass(frozen=True, eq=False)
class Corpus:
    """Opened and verified."""

    folder: Path
    header: CorpusHeader
    tokenizer: Tokenizer
    _streams: dict[str, Stream] = field(default_factory=dict)  # those that were asked for

    def stream(self, split: str) -> Stream:
        """A split; the same one every time, so that millions of document ends are read once."""
        if split not in self.header.splits:
            raise InputError(f"{self.folder} has no split '{split}'; it has {', '.join(self.header.splits)}")
        if split not in self._streams:
            self._streams[split] = self._opened(self.header.splits[split])
        return self._streams[split]

    def _opened(self, found: Split) -> Stream:
        ids = np.memmap(self.folder / IDS, dtype=self.header.width, mode="r")[found.begin : found.end]
        ends = np.fromfile(self.folder / ENDS, dtype="<u8").astype(np.int64)
        inside = ends[(ends > found.begin) & (ends < found.end)] - found.begin
        starts = np.concatenate([[0], inside])
        return Stream(ids, starts, found, self.tokenizer, self.header.lossless)


def open_corpus(folder: Path | str) -> Corpus:
    """Open what `segue prepare` made, and check that it is still the same."""
    folder = Path(folder)
    return Corpus(folder, read_header(folder), load_tokenizer(folder / TOKENIZER))


def read_header(folder: Path) -> CorpusHeader:
    """What a corpus says of itself, after a check that its files are still the same."""
    if not (folder / HEADER).is_file():
        raise SourceError(
            f"{folder} is no prepared corpus (it has no {HEADER}); make one: segue prepare SOURCE -o DIR"
        )
    header = CorpusHeader(**read_object(folder / HEADER))
    for name, checksum in header.checksums.items():
        if not (folder / name).is_file() or file_checksum(folder / name) != checksum:
            raise SourceError(
                f"{folder / name} has changed since it was prepared, or is gone; prepare it again"
            )
    return header


def file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
