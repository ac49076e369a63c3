"""Passages of a corpus for pre-training: of a stream as it runs, or pairs of passages inside documents.

Each passage has at most a given number of tokens. All choices are drawn from the generator that is passed in.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from segue.errors import InputError
from segue.text.corpus import Stream

Ids = np.ndarray[Any, Any]

SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", "؟", "।")
"""Pieces behind which a passage is cut in two, where there is one near its middle."""


class Pair(NamedTuple):
    """Two passages, and whether the second one follows the first."""

    first: Ids
    second: Ids
    follows: bool


@dataclass(frozen=True, eq=False)
class Passages:
    """Ranges of a stream, in order: from `begins` to `ends`."""

    stream: Stream
    begins: Ids  # (n,) offsets
    ends: Ids  # (n,)

    def __len__(self) -> int:
        return len(self.begins)

    def tokens(self, number: int, separator: int) -> Ids:
        """A passage, with a separator before each document that begins inside it; so its last tokens may be cut."""
        begin, end = int(self.begins[number]), int(self.ends[number])
        starts = self.stream.starts
        inside = starts[np.searchsorted(starts, begin, side="right") : np.searchsorted(starts, end)]
        return np.insert(self.stream.ids[begin:end], inside - begin, separator)[: end - begin]


def running_passages(stream: Stream, size: int, offset: int = 0) -> Passages:
    """All of a stream from an offset on, as passages of `size` tokens; documents may end inside them."""
    begins = np.arange(min(offset, len(stream.ids) - 1), len(stream.ids), size)
    return Passages(stream, begins, np.minimum(begins + size, len(stream.ids)))


@dataclass(frozen=True, eq=False)
class DocumentPassages(Passages):
    """Ranges that lie inside documents."""

    documents: Ids  # (n,) the document of each, ascending
    sentence_ends: Ids  # ids of pieces that end a sentence

    def pair(self, number: int, size: int, random: np.random.Generator) -> Pair:
        """A passage cut in two; or, half of the time, its first part and a passage of another document."""
        begin, end = int(self.begins[number]), int(self.ends[number])
        cut = self._cut(number, random)
        first = self.stream.ids[begin:cut]
        if random.random() < 0.5:
            return Pair(first, self.stream.ids[cut:end], follows=True)
        other = self._elsewhere(number, random)
        # it begins where a second part would, and may be as long: nothing but its content tells that it is random
        start = self._cut(other, random)
        finish = min(start + size - len(first), self._document_end(other))
        return Pair(first, self.stream.ids[start:finish], follows=False)

    def _cut(self, number: int, random: np.random.Generator) -> int:
        """Where to cut a passage: behind a sentence's end in its middle half, else anywhere there."""
        begin, end = int(self.begins[number]), int(self.ends[number])
        quarter = (end - begin) // 4
        low, high = begin + max(1, quarter), end - max(1, quarter)
        before = self.stream.ids[low - 1 : high]
        sentences = np.flatnonzero(np.isin(before, self.sentence_ends))
        if len(sentences):
            return low + int(random.choice(sentences))
        return int(random.integers(low, high + 1))

    def _elsewhere(self, number: int, random: np.random.Generator) -> int:
        """A random passage of another document."""
        low, high = np.searchsorted(self.documents, [self.documents[number], self.documents[number] + 1])
        drawn = int(random.integers(len(self) - (high - low)))
        return drawn if drawn < low else drawn + int(high - low)

    def _document_end(self, number: int) -> int:
        following = int(self.documents[number]) + 1
        return (
            int(self.stream.starts[following])
            if following < len(self.stream.starts)
            else len(self.stream.ids)
        )


def document_passages(stream: Stream, size: int, name: str) -> DocumentPassages:
    """Each document as passages of `size` tokens; those too short to be cut in two are left out."""
    bounds = np.append(stream.starts, len(stream.ids))
    counts = -(-np.diff(bounds) // size)
    documents = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = bounds[documents] + within * size
    ends = np.minimum(begins + size, bounds[documents + 1])
    long = ends - begins >= 2
    documents = documents[long]
    if len(np.unique(documents)) < 2:
        raise InputError(
            f"{name} has {len(np.unique(documents))} documents with text to cut in two, and next-sentence prediction "
            "draws from two or more; prepare files, rows or --documents articles, or use --set task.next_sentence=false"
        )
    ids = (stream.tokenizer.id_of(symbol) for symbol in SENTENCE_ENDS)
    sentence_ends = np.array([number for number in ids if number is not None], dtype=np.int64)
    return DocumentPassages(stream, begins[long], ends[long], documents, sentence_ends)
