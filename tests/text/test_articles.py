"""WikiText's articles as documents: the text stays the same, and documents begin at titles alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from segue.cli import app
from segue.errors import SourceError
from segue.text import articles
from segue.text.articles import is_title, with_articles
from segue.text.corpus import open_corpus
from segue.text.lanes import Lanes
from segue.text.sources import Piece, Source

FIRST = b" \n = Plain maskray = \n \n A ray . \n \n = = Habitat = = \n \n = Played , W = \n Sand . \n \n"
SECOND = b" = 2 + 2 = \n \n A sum . \n"


def source_of(*files: bytes, cut: int = 9999) -> Source:
    def pieces() -> Iterator[Piece]:
        for file in files:
            lines = file.splitlines(keepends=True)
            for first in range(0, len(lines), cut):
                yield Piece(b"".join(lines[first : first + cut]), first == 0)

    return Source("it", {"train": pieces})


def documents(source: Source) -> list[bytes]:
    texts: list[bytes] = []
    for piece in with_articles(source).parts["train"]():
        texts = [*texts, piece.text] if piece.begins else [*texts[:-1], texts[-1] + piece.text]
    return texts


@pytest.mark.parametrize("cut", [1, 2, 3, 9999])
def test_a_document_begins_at_a_title_wherever_pieces_end(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert documents(source_of(FIRST + SECOND, cut=cut)) == [FIRST, SECOND]
    monkeypatch.setattr(articles, "BLOCK_BYTES", 8)
    assert documents(source_of(FIRST + SECOND, cut=cut)) == [FIRST, SECOND]


def test_files_still_begin_documents() -> None:
    assert documents(source_of(b"a note\n", FIRST, SECOND)) == [b"a note\n", FIRST, SECOND]


@given(st.lists(st.sampled_from([b" = A = \n", b" = = A = = \n", b" \n", b" a \n"]), min_size=1))
def test_no_byte_is_lost_and_none_but_titles_begin(lines: list[bytes]) -> None:
    text = b"".join(lines)
    try:
        found = documents(source_of(text))
    except SourceError:
        return
    assert b"".join(found) == text
    assert all(later.startswith(b" = A = \n") for later in found[1:])


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (b" = Title = \n", True),
        (b"= a =", True),
        (b" = = Section = = \n", False),
        (b" = = = Part = = = ", False),
        (b" = = ", False),
        (b" = ", False),
        (b"", False),
        (b" a = b = ", False),
        (b" = a = b ", False),
    ],
)
def test_one_equals_sign_on_each_side_makes_a_title(line: bytes, title: bool) -> None:
    assert is_title(line) is title


def test_a_text_without_titles_is_refused() -> None:
    with pytest.raises(SourceError, match="no line in train of it is a title such as ' = Title = '"):
        documents(source_of(b"a note\n"))


def test_memory_ends_where_an_article_does(tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_bytes(FIRST + SECOND)
    words = ["prepare", str(tmp_path / "wiki.txt"), "--tokenizer", "words", "--valid", "0", "--test", "0"]
    for name, more in (("whole", []), ("articles", ["--documents", "articles"])):
        done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / name), *more])
        assert done.exit_code == 0, done.exception
    whole, cut = (open_corpus(tmp_path / name).stream("train") for name in ("whole", "articles"))
    assert np.array_equal(whole.ids, cut.ids)
    assert cut.split.documents == 2
    first = len(FIRST.split()) + FIRST.count(b"\n")
    segment = Lanes(cut, lanes=1).segment(first - 1, 3)
    assert segment.starts is not None
    assert segment.starts.tolist() == [[False, True, False]]
    assert Lanes(whole, lanes=1).segment(first - 1, 3).starts is None
