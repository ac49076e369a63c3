"""Texts for the commands of encoders: one per line, checked line by line."""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.terminal import tell
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.checkpoint import TextEncoder
    from segue.text.wordpiece import Pieces, Text

BLOCK = 2048
"""Lines that are read and sorted by length at once."""

MAX_NOTES = 10
"""Lines that are named when they are cut; more are counted."""

EncoderPath = Annotated[
    Path,
    typer.Argument(
        metavar="ENCODER",
        help="A run or a bundle of an encoder, a folder of Hugging Face or sentence-transformers, or an ONNX file.",
    ),
]
TextFile = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="Texts, one per line; standard input by default.")
]


def open_encoder(path: Path, device: str) -> "TextEncoder":
    from segue.interop.encoders import load_encoder

    encoder = load_encoder(path)
    encoder.model.to(device)
    return encoder


def read_texts(file: Path | None, *, pairs: bool = False) -> Iterator["list[Text]"]:
    """Blocks of lines; with `pairs` two texts in each, separated by a tab. A line without text is refused."""
    lines = enumerate(_lines(file), start=1)
    while block := [_text(line, number, pairs) for number, line in islice(lines, BLOCK)]:
        yield block


def _lines(file: Path | None) -> Iterator[bytes]:
    from segue.text.sources import open_any

    if file is None:
        yield from sys.stdin.buffer
        return
    if not file.is_file():
        raise InputError(f"there is no file {file}")
    with open_any(file) as opened:
        yield from opened


def _text(line: bytes, number: int, pairs: bool) -> "Text":
    try:
        text = line.decode().strip()
    except UnicodeDecodeError as error:
        raise InputError(f"line {number:,} is not UTF-8: {error.reason} at byte {error.start}") from None
    if not text:
        raise InputError(f"line {number:,} is empty; every line should hold a text")
    if not pairs:
        return text
    texts = [part.strip() for part in text.split("\t")]
    if len(texts) != 2 or not all(texts):
        found = {1: "it holds one text alone", 2: "one of its two texts is empty"}
        raise InputError(
            f"line {number:,} should be two texts separated by a tab; {found.get(len(texts), f'it holds {len(texts)}')}"
        )
    return texts[0], texts[1]


class CutNotes:
    """Tells of lines that were longer than the encoder reads: the first ones by number, then how many."""

    def __init__(self, max_length: int) -> None:
        self.max_length, self.read, self.cut = max_length, 0, 0

    def note(self, pieces: "Sequence[Pieces]") -> None:
        for one in pieces:
            self.read += 1
            if one.truncated:
                self.cut += 1
                if self.cut <= MAX_NOTES:
                    tell(f"note: line {self.read:,} has more than {self.max_length} tokens and was cut")

    def end(self) -> None:
        if self.cut > MAX_NOTES:
            tell(f"note: {self.cut:,} lines in all were cut to {self.max_length} tokens")
