"""How well a model predicts a stream: every token but the first is scored exactly once.

Letters: B lanes, T tokens in the segment, M states in memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segue.config import Reach, Reading
from segue.distributed import ALONE, Ranks
from segue.errors import InputError
from segue.infer.steps import StepCounter
from segue.nn.engine import Engine
from segue.nn.language import LanguageModel
from segue.nn.memory import Memory
from segue.nn.universal import FrozenUniversal
from segue.progress import Report, silent
from segue.text.corpus import Stream
from segue.text.lanes import Segment
from segue.text.tokenizer import bytes_of

Read = Callable[[Segment, Memory], tuple[Tensor, Memory]]
"""Reads a segment: the cross-entropy of its targets in nats, and the memory to read on with."""


@dataclass(frozen=True)
class Score:
    """The summed cross-entropy in nats, and the tokens, bytes and words that it is of."""

    nats: float
    tokens: int
    bytes: int | None  # of the original text; None where the tokenizer loses some of it
    words: float  # of the original text; 0 where they were not counted
    mean_steps: float | None = None  # of a Universal Transformer, for each token

    @property
    def bits_per_byte(self) -> float:
        """Of a lossless corpus only: text that the tokenizer lost costs no nats."""
        if self.bytes is None:
            raise InputError(
                "the tokenizer of this corpus loses some of the text, so there are no bits per byte; "
                "use bits per token, or prepare the text as bytes or with BPE"
            )
        return self.nats / math.log(2) / self.bytes

    @property
    def bits_per_token(self) -> float:
        return self.nats / math.log(2) / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(700.0, self.nats / self.tokens))

    @property
    def word_perplexity(self) -> float | None:
        """Where words were counted."""
        return math.exp(min(700.0, self.nats / self.words)) if self.words else None


def scored(stream: Stream, nats: float, tokens: int) -> Score:
    """The score of the first `tokens` targets, with the bytes and words of the original text.

    Words are counted for whole splits: for a part they are known only if every token is a word.
    """
    split = stream.split
    size = bytes_of(stream.tokenizer, stream.ids[1 : tokens + 1]) if stream.lossless else None
    counted = tokens == len(stream.ids) - 1 or split.words == split.tokens
    return Score(nats, tokens, size, split.words * tokens / len(stream.ids) if counted else 0)


def segments(stream: Stream, reading: Reading, limit: int, *, documents: bool = True) -> Iterator[Segment]:
    """Segments of one lane. Each of the tokens 1 … `limit` is a target once."""
    edges: Iterable[int] = range(0, limit, reading.segment)
    if documents and reading.reach.initial == "zeros":  # which begins at a segment's first token only
        edges = merge(edges, map(int, stream.starts[: np.searchsorted(stream.starts, limit)]))
    for begin, end in pairwise(chain(edges, [limit])):
        if begin == end:  # a document that starts where a segment does anyway
            continue
        tokens = torch.from_numpy(np.asarray(stream.ids[begin : end + 1]).astype(np.int64))[None]
        starts, places = _starts(stream, begin, end, documents), np.arange(begin, end)[None]
        yield Segment(tokens[:, :-1], tokens[:, 1:], starts, places=places)


def _starts(stream: Stream, begin: int, end: int, documents: bool) -> Tensor | None:
    """(1, T) Where documents start, except the very first, which a fresh memory starts anyway."""
    if not documents:
        return None
    first, last = np.searchsorted(stream.starts, [max(1, begin), end])
    if first == last:
        return None
    starts = torch.zeros(1, end - begin, dtype=torch.bool)
    starts[0, torch.from_numpy(stream.starts[first:last] - begin)] = True
    return starts


def evaluate(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    *,
    lanes: int = 1,
    limit: int | None = None,
    documents: bool = True,
    report: Report = silent,
    read: Read | None = None,
    ranks: Ranks = ALONE,
) -> Score:
    """Score a stream, read with memory. `lanes` read parts of it side by side: faster, with the same result.

    `read` replaces the model where its weights are sharded over ranks. Each of several ranks reads that many lanes.
    """
    total = targets_of(stream, limit)
    nats, done, counter = 0.0, 0, None
    if read is None and isinstance(engine := model.frozen(), FrozenUniversal):
        model, counter = engine, StepCounter(engine)
        read = counter.read
    segments_nats = surprises(
        model, stream, reading, total, lanes=lanes, documents=documents, read=read, ranks=ranks
    )
    for surprise in segments_nats:
        nats, done = nats + surprise.sum().item(), done + len(surprise)
        report("evaluating", done, total // ranks.world_size)
    assert ranks.all_reduce_sum(done) == total, "every target is scored once"
    score = scored(stream, ranks.all_reduce_sum(nats), total)
    if counter is None:
        return score
    return replace(score, mean_steps=ranks.all_reduce_sum(counter.total.steps) / total)


def surprises(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    total: int,
    *,
    lanes: int = 1,
    documents: bool = True,
    read: Read | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[Tensor]:
    """The cross-entropy of the first `total` targets, segment by segment, in float64; in order if there is one lane."""
    pieces = _read_on(model, stream, reading, total, lanes=lanes, documents=documents, read=read, ranks=ranks)
    return (nats for nats, _ in pieces)


def surprises_by_place(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    total: int,
    *,
    lanes: int = 1,
    report: Report = silent,
) -> Tensor:
    """(total,) The cross-entropy of the first `total` targets, in their order, whatever the lanes."""
    ordered, done = torch.zeros(total, dtype=torch.float64), 0
    for nats, places in _read_on(model, stream, reading, total, lanes=lanes):
        ordered[torch.from_numpy(places)] = nats
        done += len(nats)
        report("evaluating", done, total)
    return ordered


@torch.no_grad()
def _read_on(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    total: int,
    *,
    lanes: int,
    documents: bool = True,
    read: Read | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[tuple[Tensor, np.ndarray[Any, Any]]]:
    """The cross-entropy of the targets, segment by segment, in float64; and the places of the tokens before them."""
    reading = reading.model_copy(update={"segment": reading.chunk})
    if read is None:
        model = model.frozen()
        read = partial(_surprise, model)
    # more lanes would have nothing to read
    lanes = min(lanes, math.ceil(total / reading.segment / ranks.world_size))
    memory: Memory = model.start(lanes=lanes, reach=reading.reach)
    plan = (
        segments(stream, reading, total, documents=documents)
        if lanes * ranks.world_size == 1
        else _side_by_side(model, stream, reading, _Parts(lanes * ranks.world_size, total, ranks), documents)
    )
    for segment in plan:
        nats, memory = read(segment, memory)
        wanted = segment.targets >= 0
        assert segment.places is not None
        yield nats.double().cpu()[wanted], segment.places[wanted.numpy()]


def _surprise(model: Engine[Any], segment: Segment, memory: Memory) -> tuple[Tensor, Memory]:
    """(B, T) The cross-entropy of a segment's targets, and the memory to read on with."""
    device = model.device
    hidden, after = model(
        segment.tokens.to(device, non_blocking=True), memory, starts=segment.starts, lengths=segment.lengths
    )
    return model.nats(hidden, segment.targets.clamp(min=0)), after


def targets_of(stream: Stream, limit: int | None) -> int:
    """How many tokens are scored."""
    if limit is not None and limit < 1:
        raise InputError(f"the limit should be at least 1 token; found {limit}")
    if len(stream.ids) < 2:
        raise InputError(f"found {len(stream.ids)} tokens in the split; two are needed to predict one")
    return min(limit or len(stream.ids), len(stream.ids) - 1)


class _Parts(NamedTuple):
    """A stream cut into parts, one for each lane of each rank."""

    lanes: int
    total: int  # targets
    ranks: Ranks

    def begins(self, segment: int) -> tuple[np.ndarray[Any, Any], int]:
        """(B, 1) Where this rank's parts begin, and the length of a part: a multiple of the segment."""
        part = math.ceil(self.total / self.lanes / segment) * segment
        return np.array(self.ranks.share(self.lanes))[:, None] * part, part


def _side_by_side(
    model: LanguageModel | Engine[Any], stream: Stream, reading: Reading, parts: _Parts, documents: bool
) -> Iterator[Segment]:
    """The stream in parts. Each lane first reads the tokens before its part, unscored, as far as the model looks back.

    A target of -1 is not scored. Parts begin at a multiple of the segment, so that every token is read in the same
    segment as by one lane.
    """
    segment, back = reading.segment, model.looks_back(reading)
    if back is None:
        raise InputError("this model knows all the way back to the beginning: read it in one lane")
    if documents and reading.reach.initial == "zeros" and len(stream.starts) > 1:
        raise InputError("a memory of zeros begins at a segment's edge, so documents are read in one lane")
    total, before = parts.total, math.ceil(back / segment) * segment
    begins, part = parts.begins(segment)
    for moment in range(-before, part, segment):
        places = begins + moment + np.arange(segment)
        real = (places >= 0) & (places < total)
        if not real.any():
            continue
        # Lanes that have not begun yet read nothing; real places of a lane are a prefix otherwise.
        inside = np.where(real, places, 0)
        tokens = torch.from_numpy(stream.ids[inside].astype(np.int64))
        targets = torch.from_numpy(stream.ids[inside + 1].astype(np.int64))
        unscored = torch.from_numpy(~real) if moment >= 0 else torch.ones_like(targets, dtype=torch.bool)
        starts = torch.from_numpy(real & (places > 0) & stream.begins(places)) if documents else None
        lengths = None if real.all() else torch.from_numpy(real.sum(axis=1))
        yield Segment(tokens, targets.masked_fill(unscored, -1), starts, lengths, places)


def evaluate_sliding(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    *,
    limit: int | None = None,
    batch: int = 16,
    report: Report = silent,
) -> Score:
    """Sliding-window evaluation: for every target, read again the segment before it, up to its document's start."""
    total = targets_of(stream, limit)
    nats, done = 0.0, 0
    for surprise in sliding_surprises(model, stream, reading, total, batch=batch):
        nats, done = nats + surprise.sum().item(), done + len(surprise)
        report("sliding", done, total)
    return scored(stream, nats, total)


@torch.no_grad()
def sliding_surprises(
    model: LanguageModel | Engine[Any], stream: Stream, reading: Reading, total: int, *, batch: int = 16
) -> Iterator[Tensor]:
    """The cross-entropy of the first `total` targets in order, in batches, in float64; each after its own window."""
    model = model.frozen()
    device = model.device
    reach = Reach(memory=0, clamp=reading.reach.clamp, span=reading.reach.span)
    for first in range(0, total, batch):
        places = np.arange(first, min(first + batch, total))
        document = stream.starts[np.searchsorted(stream.starts, places, side="right") - 1]
        begins = np.maximum(document, places - reading.segment + 1)
        width = int((places - begins).max()) + 1
        columns = np.minimum(begins[:, None] + np.arange(width), len(stream.ids) - 1)
        tokens = torch.from_numpy(stream.ids[columns].astype(np.int64)).to(device, non_blocking=True)
        lengths = torch.from_numpy(places - begins + 1)
        hidden, _ = model(tokens, model.start(lanes=len(places), reach=reach), lengths=lengths)
        newest = hidden[torch.arange(len(places), device=device), (lengths - 1).to(device, non_blocking=True)]
        targets = torch.from_numpy(stream.ids[places + 1].astype(np.int64)).to(device, non_blocking=True)
        yield model.nats(newest, targets).double()
