"""A corpus: token ids on disk, memory-mapped, with splits and document ends.

    corpus.json      what it is: sizes, splits, checksums
    ids.bin          all tokens, in the narrowest width that fits
    ends.bin         where documents end, as 64-bit places in ids.bin
    tokenizer.json   how to read them

Splits are ranges of ids.bin, train first.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

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

    @model_validator(mode="after")
    def _splits_stay_apart(self) -> Self:
        check_apart({name: (split.begin, split.end) for name, split in self.splits.items()})
        return self


def check_apart(ranges: Mapping[str, tuple[int, int]]) -> None:
    """Splits that overlap would train on what is tested."""
    ordered = sorted(ranges.values())
    wrong = any(end < begin for begin, end in ordered)
    if wrong or any(end > begin for (_, end), (begin, _) in pairwise(ordered)):
        raise ValueError(f"the splits overlap, or end before they begin: {dict(ranges)}")


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
        whole = numbers(self.folder / IDS, self.header.width)
        ids = whole[found.begin : found.end]
        check_ids(self.folder, ids, self.header.vocab)
        ends = rising(self.folder / ENDS, len(whole))
        inside = ends[(ends > found.begin) & (ends < found.end)] - found.begin
        starts = np.concatenate([[0], inside])
        return Stream(ids, starts, found, self.tokenizer, self.header.lossless)


def open_corpus(folder: Path | str) -> Corpus:
    """Open what `segue prepare` made, and check that it is still the same."""
    folder = Path(folder)
    header, tokenizer = read_header(folder), load_tokenizer(folder / TOKENIZER)
    if tokenizer.size != header.vocab:
        raise SourceError(
            f"{folder} has {header.vocab:,} symbols and its tokenizer {tokenizer.size:,}; prepare it again"
        )
    whole = len(numbers(folder / IDS, header.width))
    end = max((split.end for split in header.splits.values()), default=0)
    if whole < end:
        raise SourceError(f"{folder / IDS} holds {whole:,} tokens and the splits {end:,}; prepare it again")
    return Corpus(folder, header, tokenizer)


def read_header(folder: Path) -> CorpusHeader:
    """What a corpus says of itself, after a check that its files are still the same."""
    if not (folder / HEADER).is_file():
        raise SourceError(
            f"{folder} is no prepared corpus (it has no {HEADER}); make one: segue prepare SOURCE -o DIR"
        )
    header = CorpusHeader(**read_object(folder / HEADER))
    check_same(folder, header.checksums, (IDS, ENDS, TOKENIZER))
    return header


def check_same(folder: Path, checksums: Mapping[str, str], needed: Iterable[str]) -> None:
    """Check that the files are those that were prepared; all that are needed, and none elsewhere."""
    here = {file.name for file in folder.iterdir() if file.is_file()}
    for name in {*needed, *checksums}:
        if name not in here or file_checksum(folder / name) != checksums.get(name):
            raise SourceError(
                f"{folder / name} has changed since it was prepared, or is gone; prepare it again"
            )


def numbers(path: Path, kind: str) -> np.ndarray[Any, Any]:
    """A file of numbers, memory-mapped."""
    size, width = path.stat().st_size, np.dtype(kind).itemsize
    if size % width:
        raise SourceError(
            f"{path} has {size:,} bytes, which are no whole numbers of {width}; prepare it again"
        )
    return np.memmap(path, dtype=kind, mode="r") if size else np.zeros(0, dtype=kind)


def rising(path: Path, most: int) -> np.ndarray[Any, Any]:
    """A file of places, each at or behind the one before, up to `most`."""
    numbers(path, "<u8")  # is it whole?
    places = np.fromfile(path, dtype="<u8")
    if len(places) and (places[-1] > most or (places[1:] < places[:-1]).any()):
        raise SourceError(f"{path} should hold rising places up to {most:,}; prepare it again")
    return places.astype(np.int64)


def check_ids(folder: Path, ids: np.ndarray[Any, Any], vocab: int) -> None:
    """Refuse ids that the vocabulary does not have: torch would look far beyond its tables."""
    if vocab > np.iinfo(ids.dtype).max:
        return
    highest = int(ids.max(initial=0))
    if highest >= vocab:
        raise SourceError(
            f"{folder / IDS} holds the id {highest:,}, and its vocabulary ends at {vocab - 1:,}; prepare it again"
        )


def file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
