"""Pretrained word vectors: Word2Vec as text or binary, GloVe as text.

word2vec text     `count width` on the first line, then a word and its numbers on each
word2vec binary   the same first line, then each word, a blank and its numbers as float32
glove text        as word2vec text, without the first line
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from segue.errors import SourceError
from segue.text.sources import open_any, rows_of

MAX_WORD_BYTES = 10_000
"""The most bytes of a word; a binary file without a blank in so many bytes is damaged."""
MAX_WIDTH = 100_000
"""The most numbers of a vector; a file that claims more is damaged."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """Words, and a vector for each."""

    words: tuple[str, ...]
    rows: Tensor  # (words, width), float32

    @property
    def width(self) -> int:
        return self.rows.size(1)

    def fitted(self, table: Tensor, texts: Sequence[str]) -> tuple[Tensor, int]:
        """A copy of the embedding `table` (V, width) with the vectors of known words, and the number of these.

        Row i of the table is the symbol `texts[i]`. All vectors are scaled by one factor to the table's standard
        deviation.
        """
        if table.size(1) != self.width:
            raise SourceError(
                f"the vectors have width {self.width} and the embedding {table.size(1)}; "
                f"use --set model.embedding={self.width}"
            )
        rows = {word: row for row, word in enumerate(self.words)}
        known = {place: rows[text] for place, text in enumerate(texts) if text in rows}
        fitted = table.detach().clone()
        if known:
            deviation = self.rows.std().to(fitted) if self.rows.numel() > 1 else fitted.new_zeros(())
            if not (deviation.isfinite() and deviation > 0):
                raise SourceError(
                    "the vectors are all equal, or contain values that are not finite; is it the right file?"
                )
            scale = fitted.std() / deviation
            fitted[list(known)] = self.rows[list(known.values())].to(fitted) * scale
        return fitted, len(known)


def read_vectors(path: Path | str) -> Vectors:
    """Vectors in any of the three formats; the first lines tell which."""
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    with open_any(path) as file:
        first = file.readline(MAX_WORD_BYTES)
        header = _header(first, path)
        if header is None:
            return _collected(path, _text_rows(file, path, first=first), None)
        probe = file.readline(MAX_WORD_BYTES)
    with open_any(path) as file:
        file.readline(MAX_WORD_BYTES)
        if _is_text(probe, header[1]):
            return _collected(path, _text_rows(file, path, first=b""), header)
        return _collected(path, _binary_rows(file, path, *header), header)


def _header(line: bytes, path: Path) -> tuple[int, int] | None:
    """Count and width, if the line holds exactly these two numbers."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    count, width = map(int, fields)
    if width > MAX_WIDTH:
        raise SourceError(f"{path} claims vectors of {width:,} numbers; is it damaged?")
    return count, width


def _is_text(line: bytes, width: int) -> bool:
    """Whether the first row is text: a word and that many numbers."""
    try:
        numbers = line.decode("utf-8").rstrip().split(" ")[-width:]
        return len(numbers) == width and all(np.isfinite(float(number)) for number in numbers)
    except (UnicodeDecodeError, ValueError):
        return False


def _text_rows(file: IO[bytes], path: Path, *, first: bytes) -> "Iterator[tuple[str, np.ndarray]]":
    """The rows of a text file; `first` is a line that was already read, and may be empty."""
    lines = chain([first] if first else [], rows_of(file, path))
    for number, line in enumerate(lines, start=1 if first else 2):
        word, *fields = line.decode("utf-8", "replace").rstrip().split(" ")
        try:
            with np.errstate(over="ignore"):  # values that are not finite are reported later
                yield word, np.array(fields, dtype=np.float32)
        except ValueError:
            raise SourceError(
                f"line {number} of {path} is not a word with numbers after it: {line[:60]!r}"
            ) from None


def _binary_rows(file: IO[bytes], path: Path, count: int, width: int) -> "Iterator[tuple[str, np.ndarray]]":
    for number in range(count):
        letters = bytearray()
        while (letter := file.read(1)) != b" ":
            if not letter or len(letters) > MAX_WORD_BYTES:
                raise SourceError(f"{path} is damaged at word {number + 1} of {count}; is it complete?")
            letters += letter
        numbers = file.read(4 * width)
        if len(numbers) < 4 * width:
            raise SourceError(f"{path} ends in the numbers of word {number + 1} of {count}; is it complete?")
        yield letters.decode("utf-8", "replace").lstrip("\n"), np.frombuffer(numbers, dtype="<f4")


def _collected(
    path: Path, rows: "Iterator[tuple[str, np.ndarray]]", header: tuple[int, int] | None
) -> Vectors:
    """All rows, checked: of one width, and as many as the header says."""
    words: list[str] = []
    vectors: list[np.ndarray] = []
    width = header[1] if header else None
    first = 1 if header is None else 2
    for word, numbers in rows:
        width = len(numbers) if width is None else width
        if len(numbers) != width or not np.isfinite(numbers).all():
            raise SourceError(
                f"line {len(words) + first} of {path} has {len(numbers)} numbers for {word!r}; {width} were expected, "
                "all of them finite"
            )
        words.append(word)
        vectors.append(numbers)
    if not words or not width:
        raise SourceError(f"{path} holds no vectors")
    if header is not None and len(words) != header[0]:
        raise SourceError(f"the first line of {path} claims {header[0]:,} words; it holds {len(words):,}")
    return Vectors(tuple(words), torch.from_numpy(np.stack(vectors).copy()))
