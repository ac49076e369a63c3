"""Prepare a corpus: learn the vocabulary if the tokenizer needs it (one pass), then encode the text (one pass)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from segue.checksums import file_checksum
from segue.config import Settings
from segue.errors import InputError, SegueError, SourceError
from segue.files import atomic_folder
from segue.progress import Report
from segue.text.corpus import ENDS, HEADER, IDS, TOKENIZER, CorpusHeader, Split
from segue.text.learn import WIKITEXT, train_bpe, train_characters, train_wordpiece, train_words
from segue.text.sources import MAX_LINE_BYTES, Piece, Source
from segue.text.tokenizer import (
    ByteTokenizer,
    Tokenizer,
    load_tokenizer,
    round_trips,
)


class PrepareConfig(Settings):
    """How text becomes tokens."""

    tokenizer: Literal["bytes", "characters", "words", "bpe", "wordpiece", "file"] = "bytes"
    tokenizer_file: Path | None = None
    minimum: PositiveInt = 1  # a rarer word or character is unknown
    size: PositiveInt = 8192  # of a BPE or WordPiece vocabulary
    cased: bool = False  # WordPiece keeps capitals and accents
    valid: float = Field(0.05, ge=0, lt=1)  # shares of the text, taken from its end
    test: float = Field(0.05, ge=0, lt=1)
    newlines: bool = True  # False: drop them, as the reference does with enwik8

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid {self.valid} and test {self.test} leave nothing to train on; hold out less"
            )
        return self

    @model_validator(mode="after")
    def _case_has_an_effect(self) -> Self:
        if self.cased and self.tokenizer != "wordpiece":
            raise ValueError(f"cased belongs to the tokenizer 'wordpiece'; found {self.tokenizer!r}")
        return self

    @model_validator(mode="after")
    def _words_stay_apart(self) -> Self:
        if not self.newlines and self.tokenizer not in ("bytes", "file"):
            raise ValueError(f"newlines are dropped from bytes alone; found tokenizer {self.tokenizer!r}")
        return self


def prepare(source: Source, folder: Path, config: PrepareConfig, report: Report) -> CorpusHeader:
    """Write the corpus atomically."""
    with atomic_folder(folder, SourceError) as fresh:
        return _write_corpus(source, fresh, config, report)


def split_pieces(source: Source, config: PrepareConfig) -> Iterator[tuple[str, Piece]]:
    """Every piece with the name of its split, train first."""
    if len(source.parts) > 1:
        for split in ("train", "valid", "test"):
            yield from ((split, piece) for piece in source.parts[split]())
        return
    total = source.size("train")
    bounds = []
    if config.valid:
        bounds.append(("valid", round(total * (1 - config.valid - config.test))))
    if config.test:
        bounds.append(("test", round(total * (1 - config.test))))
    splitter = _Splitter(bounds)
    for piece in source.parts["train"]():
        yield from splitter.add(piece)
    yield from splitter.end()


class _Splitter:
    """Assigns pieces to splits. A split starts with the first document after its bound; the first document is cut."""

    def __init__(self, bounds: list[tuple[str, int]]) -> None:
        self._bounds = bounds
        self._split, self._at, self._documents = "train", 0, 0
        self._held, self._begins = b"", True  # text after `_at` that may still be cut

    def add(self, piece: Piece) -> Iterator[tuple[str, Piece]]:
        if piece.begins:
            yield from self._emit(len(self._held))
            self._documents, self._begins = self._documents + 1, True
            if self._documents > 1 and self._bounds and self._at >= self._bounds[0][1]:
                self._split = self._bounds.pop(0)[0]
        self._held += piece.text
        if self._documents == 1:
            yield from self._cut(over=False)
            if self._bounds and self._bounds[0][1] - self._at <= len(self._held):
                return
        yield from self._emit(len(self._held))

    def end(self) -> Iterator[tuple[str, Piece]]:
        if self._documents == 1:
            yield from self._cut(over=True)
        yield from self._emit(len(self._held))

    def _cut(self, over: bool) -> Iterator[tuple[str, Piece]]:
        while self._bounds:
            end = seam(self._held, max(1, self._bounds[0][1] - self._at), over)
            if not end:
                return
            yield from self._emit(end)
            self._split, self._begins = self._bounds.pop(0)[0], True

    def _emit(self, size: int) -> Iterator[tuple[str, Piece]]:
        if size:
            yield self._split, Piece(self._held[:size], self._begins)
            self._at, self._held, self._begins = self._at + size, self._held[size:], False


def seam(text: bytes, place: int, over: bool) -> int:
    """Where to cut a document, at or after a place: after a line, or inside it if it has no end nearby.

    0 means that it cannot be cut; or, if the text is not `over`, that more of it must be read first.
    """
    line = text.find(b"\n", place - 1, place + MAX_LINE_BYTES) + 1
    if 0 < line < len(text):
        return line
    if not over and (line or len(text) < place + MAX_LINE_BYTES):
        return 0
    return _inside_line(text.rstrip(b"\r\n") if over else text, place)


def _inside_line(text: bytes, place: int) -> int:
    """After a space, else after a complete character, else (if it is not UTF-8) at the place itself."""
    space = text.find(b" ", place - 1) + 1
    if 0 < space < len(text):
        return space
    boundaries = (
        at for at in range(place, place + 4) if text[at : at + 1] and text[at] & 0b1100_0000 != 0b1000_0000
    )
    return next(boundaries, place if place + 4 <= len(text) else 0)


def _write_corpus(source: Source, folder: Path, config: PrepareConfig, report: Report) -> CorpusHeader:
    total = sum(source.size(part) for part in source.parts)
    if not total:
        raise SourceError(f"{source.name} is empty; there is nothing to prepare")
    tokenizer = _tokenizer(source, config, report, total)
    (folder / TOKENIZER).write_text(tokenizer.json(), encoding="utf-8")
    width = "uint8" if tokenizer.size <= 2**8 else "uint16" if tokenizer.size <= 2**16 else "uint32"
    with (folder / IDS).open("wb") as ids, (folder / ENDS).open("wb") as ends:
        writer = _Writer(ids, ends, width, count_words=config.tokenizer != "bytes")
        done = 0
        for split, piece in split_pieces(source, config):
            writer.write(split, piece, tokenizer, drop=b"" if config.newlines else b"\n")
            done += len(piece.text)
            report("encoding", done, total)
        writer.end_document()
        if not ids.tell():
            raise SourceError(f"{source.name} holds not one token; there is nothing to prepare")
    header = CorpusHeader(
        source=source.name,
        tokenizer=config.tokenizer,
        lossless=writer.lossless,
        vocab=tokenizer.size,
        width=width,
        splits=writer.splits(),
        checksums={name: file_checksum(folder / name) for name in (IDS, ENDS, TOKENIZER)},
    )
    (folder / HEADER).write_text(
        json.dumps(header.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8"
    )
    return header


class _Writer:
    """Appends tokens and document ends to the files, and counts them."""

    def __init__(self, ids: IO[bytes], ends: IO[bytes], width: str, *, count_words: bool) -> None:
        self._ids, self._ends, self._width, self._count_words = ids, ends, np.dtype(width), count_words
        self._at, self._ended, self.lossless = 0, 0, True
        self._counts: dict[str, dict[str, int]] = {}

    def write(self, split: str, piece: Piece, tokenizer: Tokenizer, drop: bytes) -> None:
        if piece.begins:
            self.end_document()
        counts = self._counts.setdefault(split, {"begin": self._at, "bytes": 0, "words": 0, "documents": 0})
        text = piece.text.translate(None, drop) if drop else piece.text
        tokens = np.asarray(tokenizer.encode(text)).astype(self._width)
        self._ids.write(tokens.tobytes())
        self._at += len(tokens)
        self.lossless = self.lossless and round_trips(tokenizer, tokens, text)
        counts["bytes"] += len(text)
        counts["documents"] += piece.begins
        if self._count_words:
            counts["words"] += len(text.split()) + text.count(b"\n")
        counts["end"] = self._at

    def end_document(self) -> None:
        if self._at > self._ended:
            self._ends.write(np.array([self._at], dtype="<u8").tobytes())
            self._ended = self._at

    def splits(self) -> dict[str, Split]:
        return {name: Split(**counts) for name, counts in self._counts.items()}


def _tokenizer(source: Source, config: PrepareConfig, report: Report, total: int) -> Tokenizer:
    def training() -> Iterator[bytes]:
        done = 0
        for split, piece in split_pieces(source, config):
            if split != "train":
                return
            done += len(piece.text)
            report("finding the vocabulary", done, total)
            yield piece.text

    try:
        match config.tokenizer:
            case "bytes":
                return _byte_tokenizer(source, config)
            case "characters":
                return train_characters(training(), config.minimum)
            case "words":
                return train_words(training(), config.minimum, source.words or WIKITEXT)
            case "bpe":
                return train_bpe(training(), config.size)
            case "wordpiece":
                return train_wordpiece(training(), config.size, lower=not config.cased)
            case "file":
                return _given_tokenizer(config)
    except SegueError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exceptions, and wraps ours in them
        raise InputError(
            f"the {config.tokenizer} vocabulary of {source.name} could not be learned: {error}"
        ) from None


def _byte_tokenizer(source: Source, config: PrepareConfig) -> ByteTokenizer:
    if config.newlines and not source.own_bytes:
        return ByteTokenizer()
    return ByteTokenizer(_frequent_bytes(source, newlines=config.newlines))


def _given_tokenizer(config: PrepareConfig) -> Tokenizer:
    if config.tokenizer_file is None:
        raise InputError("the tokenizer 'file' needs a tokenizer.json; name it with --tokenizer-file")
    tokenizer = load_tokenizer(config.tokenizer_file)
    if not config.newlines and not isinstance(tokenizer, ByteTokenizer):
        raise InputError(
            f"newlines are dropped from bytes alone; {config.tokenizer_file} is no tokenizer of bytes"
        )
    return tokenizer


def _frequent_bytes(source: Source, *, newlines: bool) -> bytes:
    """All bytes of the splits, the most frequent first: the order of ids in the reference code."""
    counts: Any = np.zeros(256, dtype=np.int64)
    first = np.full(256, np.iinfo(np.int64).max)
    at = 0
    for part in source.parts:
        for piece in source.parts[part]():
            values = np.frombuffer(piece.text, dtype=np.uint8)
            counts += np.bincount(values, minlength=256)
            distinct, where = np.unique(values, return_index=True)
            first[distinct] = np.minimum(first[distinct], at + where)
            at += len(values)
    known = [byte for byte in range(256) if counts[byte] and (newlines or byte != ord("\n"))]
    return bytes(sorted(known, key=lambda byte: (-counts[byte], first[byte])))
