"""Word vectors: the three formats give the same vectors, and damaged files are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from segue.errors import SegueError, SourceError
from segue.interop.vectors import Vectors, read_vectors

WORDS = ("the", "señor", "42")
ROWS = np.array([[1.5, -2, 0.25], [0, 3, 1e-3], [7, 8, 9]], dtype=np.float32)


def text(*, header: bool) -> bytes:
    lines = [
        f"{word} {' '.join(str(number) for number in row)}\n" for word, row in zip(WORDS, ROWS, strict=True)
    ]
    return (("3 3\n" if header else "") + "".join(lines)).encode()


def binary(*, newlines: bool) -> bytes:
    end = b"\n" if newlines else b""
    return b"3 3\n" + b"".join(
        w.encode() + b" " + row.tobytes() + end for w, row in zip(WORDS, ROWS, strict=True)
    )


@pytest.mark.parametrize(
    "content",
    [text(header=True), text(header=False), binary(newlines=True), binary(newlines=False)],
    ids=["word2vec text", "glove", "word2vec binary", "without newlines"],
)
def test_all_formats_say_the_same(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vectors").write_bytes(content)
    vectors = read_vectors(tmp_path / "vectors")
    assert vectors.words == WORDS
    assert_close(vectors.rows, torch.from_numpy(ROWS))


def test_known_words_get_their_rows() -> None:
    vectors = Vectors(WORDS, torch.from_numpy(ROWS))
    table = torch.randn(4, 3)
    fitted, known = vectors.fitted(table, ["42", "stranger", "nobody", "the"])
    assert known == 2
    assert_close(fitted[[0, 3]], torch.from_numpy(ROWS[[2, 0]]) * table.std() / torch.from_numpy(ROWS).std())
    assert_close(fitted[1:3], table[1:3], rtol=0, atol=0)
    with pytest.raises(SourceError, match=r"width 3 and the embedding 5; use --set model\.embedding=3"):
        vectors.fitted(torch.zeros(4, 5), [])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (text(header=True).replace(b"3 3\n", b"5 3\n"), "claims 5 words; it holds 3"),
        (
            text(header=False).replace(b" 3.0", b"", 1),
            "line 2 of .* has 2 numbers for 'señor'; 3 were expected",
        ),
        (text(header=False).replace(b"3.0", b"three", 1), "line 2 of .* is not a word with numbers"),
        (text(header=False).replace(b"3.0", b"nan", 1), "line 2 .* all of them finite"),
        (binary(newlines=True)[:-5], "ends in the numbers of word 3 of 3"),
        (b"3 3\n\xff\xfe", "is damaged at word 1 of 3"),
        (b"", "holds no vectors"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(SourceError, match=complaint):
        read_vectors(tmp_path / "vectors")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no file"):
        read_vectors(tmp_path / "nothing")


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf")])
def test_vectors_without_a_spread_are_refused(value: float) -> None:
    with pytest.raises(SegueError, match="all equal, or contain values that are not finite"):
        Vectors(("a", "b"), torch.full((2, 3), value)).fitted(torch.randn(4, 3), ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"3 99999999999\nthe \0\0\0\0", "claims vectors of 99,999,999,999 numbers"),
        (b"9" * 5000 + b" 3\nthe 1 2 3\n", "line 2 of .* has 3 numbers"),
        (b"the 1e39 2 3\n", "all of them finite"),
    ],
)
def test_sizes_and_numbers_beyond_reason_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(SourceError, match=complaint):
        read_vectors(tmp_path / "vectors")


def test_one_number_has_no_spread() -> None:
    with pytest.raises(SourceError, match="all equal"):
        Vectors(("a",), torch.ones(1, 1)).fitted(torch.randn(3, 1), ["a", "b", "c"])
