"""Sentence pairs: two aligned files, a TSV or a JSONL are prepared as token ids on disk.

    pairs.json              the header: vocabulary, splits, what was left out, checksums
    ids.bin                 the token ids of source, target, source, target …, uncut
    ends.bin                where each of these ends, as 64-bit offsets in ids.bin
    tokenizer.json          the target's tokenizer, and the source's too if they share one
    source-tokenizer.json   the source's, if it has its own
    texts.txt               with a vocabulary of words: the text itself, a line for each side

The files hold no start and end tokens; a batch adds them (`special_tokens.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import NonNegativeInt, PositiveInt, model_validator

from segue.checksums import file_checksum
from segue.config import Settings
from segue.errors import InputError, SourceError
from segue.files import atomic_folder, is_file
from segue.progress import Report
from segue.text.corpus import (
    ENDS,
    IDS,
    TOKENIZER,
    check_checksums,
    check_ids,
    check_no_overlap,
    memory_mapped,
    read_ends,
)
from segue.text.learn import train_bpe, train_sentence_words
from segue.text.parsing import parse_json, read_object
from segue.text.sources import open_any, rows_of
from segue.text.special_tokens import vocab_with_special
from segue.text.tokenizer import Tokenizer, load_tokenizer, unicode

HEADER, SOURCE_TOKENIZER, TEXTS = "pairs.json", "source-tokenizer.json", "texts.txt"

Pair = tuple[bytes, bytes]
Pairs = Callable[[], Iterator[Pair]]
"""Sentence pairs as a function: each call reads them from the beginning."""


class PairsConfig(Settings):
    """How pairs are encoded."""

    tokenizer: Literal["bpe", "words"] = "bpe"
    size: PositiveInt = 10_000  # of the vocabulary, or of each if there are two; of words at most
    minimum: PositiveInt = 1  # a rarer word is unknown
    joint: bool = True  # one vocabulary for both sides
    lower: bool = False  # convert all text to lower case
    longest: PositiveInt = 256  # tokens of a side that a model reads; longer sides are cut and counted


class PairsSplit(Settings):
    """A range of pairs, and how many were left out or cut."""

    begin: NonNegativeInt
    end: NonNegativeInt
    tokens: NonNegativeInt  # of both sides, after cutting
    empty: NonNegativeInt  # pairs left out because a side was empty
    cut: NonNegativeInt  # sides that were longer than `longest`

    @property
    def pairs(self) -> int:
        return self.end - self.begin


class PairsHeader(Settings):
    """The content of pairs.json."""

    format: Literal["segue-pairs-1"] = "segue-pairs-1"
    vocab: PositiveInt  # of the model, start and end included
    source_vocab: NonNegativeInt  # 0: the same vocabulary
    longest: PositiveInt
    lower: bool
    whole: bool = False  # ids.bin holds uncut sides; False: an older folder, cut at `longest`
    tokenizer: Literal["bpe", "words"] = "bpe"
    splits: dict[str, PairsSplit]
    checksums: dict[str, str]

    @model_validator(mode="after")
    def _splits_do_not_overlap(self) -> Self:
        check_no_overlap({name: (split.begin, split.end) for name, split in self.splits.items()})
        if "train" not in self.splits or not self.splits["train"].pairs:
            raise ValueError(f"there are no pairs to train on in the splits {list(self.splits)}")
        return self


def from_two_files(source: Path, target: Path) -> Pairs:
    """Two files with the same number of lines; line n of one is the translation of line n of the other."""

    def pairs() -> Iterator[Pair]:
        with open_any(source) as left, open_any(target) as right:
            lines = zip_longest(rows_of(left, source), rows_of(right, target))
            for number, (ours, theirs) in enumerate(lines, start=1):
                if ours is None or theirs is None:
                    short, long = (source, target) if ours is None else (target, source)
                    more = sum(1 for _ in rows_of(right if ours is None else left, long))
                    raise SourceError(
                        f"{short} has {number - 1:,} lines and {long} {number + more:,}; "
                        "line by line they should be translations of each other"
                    )
                yield _side(ours, f"line {number} of {source}"), _side(theirs, f"line {number} of {target}")

    return pairs


def from_tabs(path: Path) -> Pairs:
    """A TSV file: two fields per line, source first."""

    def pairs() -> Iterator[Pair]:
        with open_any(path) as file:
            for number, line in enumerate(rows_of(file, path), start=1):
                name, fields = f"line {number} of {path}", line.rstrip(b"\r\n").split(b"\t")
                if len(fields) != 2:
                    raise SourceError(
                        f"{name} has {len(fields)} fields; two were expected, source and target, "
                        "with one tab between them and none inside"
                    )
                yield _side(fields[0], name), _side(fields[1], name)

    return pairs


def from_rows(path: Path, source: str, target: str) -> Pairs:
    """A JSONL file: one object per line, with the two texts under these names."""

    def pairs() -> Iterator[Pair]:
        with open_any(path) as file:
            for number, line in enumerate(rows_of(file, path), start=1):
                name = f"line {number} of {path}"
                row = parse_json(line, name)
                texts = [row.get(key) if isinstance(row, dict) else None for key in (source, target)]
                if not all(isinstance(text, str) for text in texts):
                    raise SourceError(f"{name} has no text under '{source}' and '{target}'")
                try:
                    ours, theirs = (b" ".join(str(text).encode().splitlines()).strip() for text in texts)
                except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
                    raise SourceError(f"{name} holds half a character: {error}") from None
                yield ours, theirs

    return pairs


def _side(text: bytes, name: str) -> bytes:
    """One side of a pair, without spaces around it; it must be UTF-8."""
    side = text.strip()
    unicode(side, name, "convert it")
    return side


def held_out(parts: Mapping[str, Pairs]) -> dict[str, Pairs]:
    """Hold out the last twentieth of the pairs, at most 2,000, as `valid`."""
    train = parts["train"]
    total = sum(1 for _ in train())
    cut = total - max(1, min(2000, total // 20))
    return {**parts, "train": lambda: islice(train(), cut), "valid": lambda: islice(train(), cut, None)}


@dataclass(frozen=True, eq=False)
class PairSet:
    """Prepared pairs, opened and verified."""

    folder: Path
    header: PairsHeader
    source: Tokenizer
    target: Tokenizer
    ids: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]

    def pair(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The ids of a source and its target, cut at `longest`, without start and end tokens."""
        source, target = self._uncut(number)
        return source[: self.header.longest], target[: self.header.longest]

    def texts(self, split: str) -> Iterator[tuple[bytes, bytes]]:
        """The sources and targets of a split, uncut, and with their unknown words."""
        self.check_uncut(split)
        part = self.split(split)
        if self.header.tokenizer == "words":
            with (self.folder / TEXTS).open("rb") as file:
                lines = islice(file, 2 * part.begin, 2 * part.end)
                yield from _in_twos(line.removesuffix(b"\n") for line in lines)
            return
        for number in range(part.begin, part.end):
            source, target = self._uncut(number)
            yield self.source.decode(source), self.target.decode(target)

    def check_uncut(self, split: str) -> None:
        """Refuse cut sides, which older folders hold: translations must be compared with uncut references."""
        cut = self.split(split).cut
        if cut and not self.header.whole:
            raise SourceError(
                f"{self.folder} holds {cut:,} sides of {split} cut at {self.header.longest} tokens; translations are "
                "compared with uncut ones; prepare it again: segue prepare-pairs"
            )

    def _uncut(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        begin = self.ends[2 * number - 1] if number else 0
        middle, end = self.ends[2 * number : 2 * number + 2]
        return self.ids[begin:middle], self.ids[middle:end]

    def lengths(self, split: str) -> np.ndarray[Any, Any]:
        """Lengths (pairs, 2) of source and target, each with one special token: end or start."""
        part = self.split(split)
        sizes = np.diff(self.ends, prepend=0).reshape(-1, 2)[part.begin : part.end]
        lengths: np.ndarray[Any, Any] = np.minimum(sizes, self.header.longest) + 1
        return lengths

    def split(self, name: str) -> PairsSplit:
        if name not in self.header.splits:
            raise InputError(f"{self.folder} has no split '{name}'; it has {', '.join(self.header.splits)}")
        return self.header.splits[name]


def _in_twos(sides: Iterator[bytes]) -> Iterator[Pair]:
    return zip(sides, sides, strict=True)  # of one iterator: it takes two at a time


def prepare_pairs(
    parts: Mapping[str, Pairs], folder: Path, config: PairsConfig, report: Report
) -> PairsHeader:
    """Write the pairs of all splits atomically. The tokenizers learn from `train` only."""
    with atomic_folder(folder, SourceError) as fresh:
        return _write_pairs(parts, fresh, config, report)


def _write_pairs(
    parts: Mapping[str, Pairs], folder: Path, config: PairsConfig, report: Report
) -> PairsHeader:
    source, target = _tokenizers(parts["train"], config)
    (folder / TOKENIZER).write_text(target.json(), encoding="utf-8")
    if not config.joint:
        (folder / SOURCE_TOKENIZER).write_text(source.json(), encoding="utf-8")
    splits, at, offset = {}, 0, 0
    kept = (folder / TEXTS).open("wb") if config.tokenizer == "words" else nullcontext()
    with (folder / IDS).open("wb") as ids, (folder / ENDS).open("wb") as ends, kept as texts:
        for name, pairs in parts.items():
            begin, tokens, empty, cut = at, 0, 0, 0
            for pair in pairs():
                if not all(pair):
                    empty += 1
                    continue
                for side, tokenizer in zip(pair, (source, target), strict=True):
                    text = cased(side, config.lower)
                    if texts is not None:
                        texts.write(text.replace(b"\n", b" ") + b"\n")
                    encoded = list(tokenizer.encode(text))
                    cut += len(encoded) > config.longest
                    tokens += min(len(encoded), config.longest)
                    ids.write(np.array(encoded, dtype="<u4").tobytes())
                    offset += len(encoded)
                    ends.write(np.array([offset], dtype="<u8").tobytes())
                at += 1
                report(f"encoding {name}", at - begin, 0)
            splits[name] = PairsSplit(begin=begin, end=at, tokens=tokens, empty=empty, cut=cut)
    if not splits["train"].pairs:
        raise SourceError("there are no pairs to train on; is a side empty?")
    names = _file_names(separate=not config.joint, tokenizer=config.tokenizer)
    header = PairsHeader(
        vocab=vocab_with_special(target.size),
        source_vocab=0 if config.joint else vocab_with_special(source.size),
        longest=config.longest,
        lower=config.lower,
        whole=True,
        tokenizer=config.tokenizer,
        splits=splits,
        checksums={name: file_checksum(folder / name) for name in names},
    )
    (folder / HEADER).write_text(header.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return header


def cased(text: bytes, lower: bool) -> bytes:
    """The text, in lower case if wanted. Invalid UTF-8 is kept, so that the tokenizer refuses it."""
    return (
        text.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape") if lower else text
    )


def _tokenizers(pairs: Pairs, config: PairsConfig) -> tuple[Tokenizer, Tokenizer]:
    def side(*numbers: int) -> Iterator[bytes]:
        return (cased(pair[number], config.lower) + b"\n" for pair in pairs() for number in numbers)

    def learned(*numbers: int) -> Tokenizer:
        if config.tokenizer == "words":
            return train_sentence_words(side(*numbers), config.size, config.minimum)
        return train_bpe(side(*numbers), config.size)

    if config.joint:
        both = learned(0, 1)
        return both, both
    return learned(0), learned(1)


def _file_names(*, separate: bool, tokenizer: str) -> list[str]:
    """The files of a folder, without its header."""
    own = [SOURCE_TOKENIZER] if separate else []
    return [IDS, ENDS, TOKENIZER, *own, *([TEXTS] if tokenizer == "words" else [])]


def open_pairs(folder: Path | str) -> PairSet:
    """Open pairs that `segue prepare-pairs` made, and verify its files."""
    folder = Path(folder)
    if not is_file(folder / HEADER):
        raise SourceError(
            f"{folder} holds no prepared pairs (it has no {HEADER}); make them: segue prepare-pairs"
        )
    header = PairsHeader(**read_object(folder / HEADER))
    needed = _file_names(separate=bool(header.source_vocab), tokenizer=header.tokenizer)
    check_checksums(folder, header.checksums, needed)
    target = load_tokenizer(folder / TOKENIZER)
    source = load_tokenizer(folder / SOURCE_TOKENIZER) if header.source_vocab else target
    ids = np.array(memory_mapped(folder / IDS, "<u4"))
    pairs = PairSet(folder, header, source, target, ids, read_ends(folder / ENDS, len(ids)))
    _check_consistent(pairs)
    return pairs


def _check_consistent(pairs: PairSet) -> None:
    """Check that there are two sides for each pair, and that all ids are in the vocabularies."""
    header, folder = pairs.header, pairs.folder
    for tokenizer, vocab in (
        (pairs.target, header.vocab),
        (pairs.source, header.source_vocab or header.vocab),
    ):
        if vocab_with_special(tokenizer.size) != vocab:
            raise SourceError(
                f"{folder} has {vocab:,} symbols, start and end included, and its tokenizer {tokenizer.size:,}; "
                "prepare it again"
            )
    count = max(split.end for split in header.splits.values())
    if len(pairs.ends) != 2 * count:
        raise SourceError(
            f"{folder / ENDS} holds the ends of {len(pairs.ends):,} sides; {count:,} pairs have twice as many; "
            "prepare it again"
        )
    if header.tokenizer == "words":
        with (folder / TEXTS).open("rb") as file:
            lines = sum(1 for _ in file)
        if lines != 2 * count:
            raise SourceError(
                f"{folder / TEXTS} has {lines:,} lines; {count:,} pairs have twice as many; prepare it again"
            )
    in_source = np.repeat(np.arange(2 * count) % 2 == 0, np.diff(pairs.ends, prepend=0))
    ids = pairs.ids[: len(in_source)]
    check_ids(folder, ids[in_source], pairs.source.size)
    check_ids(folder, ids[~in_source], pairs.target.size)
