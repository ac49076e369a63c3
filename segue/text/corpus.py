"""A corpus: token ids on disk, memory-mapped, with splits and document ends.

    corpus.json      the header: vocabulary, splits, checksums
    ids.bin          all token ids, in the narrowest integer type that fits
    ends.bin         the ends of documents, as 64-bit offsets in ids.bin
    tokenizer.json   the tokenizer

Splits are ranges of ids.bin, train first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from segue.checksums import file_checksum
from segue.config import Settings
from segue.errors import InputError, SourceError
from segue.files import is_file
from segue.text.parsing import read_object
from segue.text.tokenizer import Tokenizer, load_tokenizer

HEADER, IDS, ENDS, TOKENIZER = "corpus.json", "ids.bin", "ends.bin", "tokenizer.json"


class Split(Settings):
    """A range of tokens, and the size of the text that they were made from."""

    begin: NonNegativeInt
    end: NonNegativeInt
    bytes: NonNegativeInt
    words: NonNegativeInt  # separated by spaces, plus one per line; 0 if they were not counted
    documents: NonNegativeInt

    @property
    def tokens(self) -> int:
        return self.end - self.begin


def _lossless_by_kind(header: dict[str, Any]) -> bool:
    """Whether the tokenizer loses no text. For a corpus of an older version, whose header does not say so."""
    return header["tokenizer"] in ("bytes", "bpe")


class CorpusHeader(Settings):
    """The content of corpus.json."""

    format: Literal["segue-corpus-1"] = "segue-corpus-1"
    source: str
    tokenizer: str  # its kind: bytes, characters, words, bpe or file
    lossless: bool = Field(default_factory=_lossless_by_kind)  # decoding the ids gives back every byte
    vocab: PositiveInt
    width: Literal["uint8", "uint16", "uint32"]
    splits: dict[str, Split]
    checksums: dict[str, str]  # SHA-256 of the files beside it

    @model_validator(mode="after")
    def _splits_do_not_overlap(self) -> Self:
        check_no_overlap({name: (split.begin, split.end) for name, split in self.splits.items()})
        return self


def check_no_overlap(ranges: Mapping[str, tuple[int, int]]) -> None:
    """Check that no two splits overlap: a model must not be trained on what it is tested on."""
    ordered = sorted(ranges.values())
    wrong = any(end < begin for begin, end in ordered)
    if wrong or any(end > begin for (_, end), (begin, _) in pairwise(ordered)):
        raise ValueError(f"the splits overlap, or end before they begin: {dict(ranges)}")


@dataclass(frozen=True, eq=False)
class Stream:
    """One split: its token ids, and the offsets at which its documents begin."""

    ids: np.ndarray[Any, Any]  # memory-mapped
    starts: np.ndarray[Any, Any]  # ascending; the first is 0
    split: Split
    tokenizer: Tokenizer
    lossless: bool = True  # decoding the ids gives back the original text

    def begins(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whether a document begins at each of these offsets. (`np.isin` would sort all documents every time.)"""
        # the last start at or before each offset; -1 before the first start, which is the last element
        nearest = np.searchsorted(self.starts, places, side="right") - 1
        is_start: np.ndarray[Any, Any] = self.starts[nearest] == places
        return is_start

    def text(self, begin: int, end: int) -> bytes:
        """The text of a range of tokens."""
        return self.tokenizer.decode(self.ids[begin:end].tolist())


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus, opened and verified."""

    folder: Path
    header: CorpusHeader
    tokenizer: Tokenizer
    _streams: dict[str, Stream] = field(default_factory=dict)  # opened so far, by split

    def stream(self, split: str) -> Stream:
        """The stream of a split. It is cached, so that millions of document ends are read only once."""
        if split not in self.header.splits:
            raise InputError(f"{self.folder} has no split '{split}'; it has {', '.join(self.header.splits)}")
        if split not in self._streams:
            self._streams[split] = self._open_stream(self.header.splits[split])
        return self._streams[split]

    def _open_stream(self, split: Split) -> Stream:
        all_ids = memory_mapped(self.folder / IDS, self.header.width)
        ids = all_ids[split.begin : split.end]
        check_ids(self.folder, ids, self.header.vocab)
        ends = read_ends(self.folder / ENDS, len(all_ids))
        inside = ends[(ends > split.begin) & (ends < split.end)] - split.begin
        starts = np.concatenate([[0], inside])
        return Stream(ids, starts, split, self.tokenizer, self.header.lossless)


def open_corpus(folder: Path | str) -> Corpus:
    """Open a corpus that `segue prepare` made, and verify its files."""
    folder = Path(folder)
    header, tokenizer = read_header(folder), load_tokenizer(folder / TOKENIZER)
    if tokenizer.size != header.vocab:
        raise SourceError(
            f"{folder} has {header.vocab:,} symbols and its tokenizer {tokenizer.size:,}; prepare it again"
        )
    tokens = len(memory_mapped(folder / IDS, header.width))
    end = max((split.end for split in header.splits.values()), default=0)
    if tokens < end:
        raise SourceError(f"{folder / IDS} holds {tokens:,} tokens and the splits {end:,}; prepare it again")
    return Corpus(folder, header, tokenizer)


def read_header(folder: Path) -> CorpusHeader:
    """The header of a corpus, after its files were verified."""
    if not is_file(folder / HEADER):
        raise SourceError(
            f"{folder} is no prepared corpus (it has no {HEADER}); make one: segue prepare SOURCE -o DIR"
        )
    header = CorpusHeader(**read_object(folder / HEADER))
    check_checksums(folder, header.checksums, (IDS, ENDS, TOKENIZER))
    return header


def check_checksums(folder: Path, checksums: Mapping[str, str], needed: Iterable[str]) -> None:
    """Verify all files that are needed or have a checksum. Names that point outside the folder are refused."""
    here = {file.name for file in folder.iterdir() if file.is_file()}
    for name in {*needed, *checksums}:
        if name not in here or file_checksum(folder / name) != checksums.get(name):
            raise SourceError(
                f"{folder / name} has changed since it was prepared, or is gone; prepare it again"
            )


def memory_mapped(path: Path, kind: str) -> np.ndarray[Any, Any]:
    """A file of integers of one type, memory-mapped."""
    size, width = path.stat().st_size, np.dtype(kind).itemsize
    if size % width:
        raise SourceError(f"{path} has {size:,} bytes, which is no multiple of {width}; prepare it again")
    return np.memmap(path, dtype=kind, mode="r") if size else np.zeros(0, dtype=kind)


def read_ends(path: Path, last: int) -> np.ndarray[Any, Any]:
    """A file of offsets in ascending order, none greater than `last`."""
    memory_mapped(path, "<u8")  # checks the size of the file
    ends = np.fromfile(path, dtype="<u8")
    if len(ends) and (ends[-1] > last or (ends[1:] < ends[:-1]).any()):
        raise SourceError(f"{path} should hold ascending offsets up to {last:,}; prepare it again")
    return ends.astype(np.int64)


def check_ids(folder: Path, ids: np.ndarray[Any, Any], vocab: int) -> None:
    """Refuse ids that are not in the vocabulary: torch would read beyond the embedding table."""
    if vocab > np.iinfo(ids.dtype).max:
        return
    highest = int(ids.max(initial=0))
    if highest >= vocab:
        raise SourceError(
            f"{folder / IDS} holds the id {highest:,}, and its vocabulary ends at {vocab - 1:,}; prepare it again"
        )
