"""Articles as documents. WikiText has a title as ` = Title = ` between empty lines, and ` = = Section = = ` inside."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from typing import NamedTuple

from segue.errors import SourceError
from segue.text.sources import BLOCK_BYTES, Piece, Pieces, Source


class _Line(NamedTuple):
    text: bytes
    begins: bool  # it is the first of a file


def is_title(line: bytes) -> bool:
    """Whether a line has the form of a title: one equals sign on each side, and words between them."""
    if not line.lstrip().startswith(b"="):  # most lines
        return False
    words = line.split()
    equals = [word == b"=" for word in words]
    return len(words) > 2 and equals[0] and equals[-1] and not equals[1] and not equals[-2]


def with_articles(source: Source) -> Source:
    """The same text, where each article is a document."""
    parts = {split: _articles(pieces, f"{split} of {source.name}") for split, pieces in source.parts.items()}
    return replace(source, parts=parts)


def _articles(pieces: Pieces, name: str) -> Pieces:
    def articles() -> Iterator[Piece]:
        titles, empty = (
            0,
            True,
        )  # empty: the document has no word yet; such lines belong to the article after them
        held: list[bytes] = []
        size, begins = 0, False
        for line, title in _with_titles(pieces()):
            titles += title
            new = line.begins or (title and not empty)
            if held and (new or size + len(line.text) > BLOCK_BYTES):
                yield Piece(b"".join(held), begins)
                held, size, begins = [], 0, False
            held.append(line.text)
            size, begins = size + len(line.text), begins or new
            empty = (empty or new) and not line.text.strip()
        if held:
            yield Piece(b"".join(held), begins)
        if not titles:
            raise SourceError(
                f"no line in {name} is a title such as ' = Title = ' between empty lines; "
                "leave out --documents articles"
            )

    return articles


def _with_titles(pieces: Iterator[Piece]) -> Iterator[tuple[_Line, bool]]:
    """Each line, and whether it is a title.

    A title needs empty lines around it, because tables and formulas have lines such as ` = Played , W = ` too.
    """
    blank = True
    for line, following in pairwise(chain(_lines(pieces), [_Line(b"", begins=True)])):
        ends = following.begins or not following.text.strip()
        yield line, (blank or line.begins) and ends and is_title(line.text)
        blank = not line.text.strip()


def _lines(pieces: Iterator[Piece]) -> Iterator[_Line]:
    for piece in pieces:
        for number, text in enumerate(piece.text.splitlines(keepends=True)):
            yield _Line(text, begins=piece.begins and number == 0)
