"""Evaluation whose result is the same to the last bit, whatever the threads, the lanes, and where the stream is cut."""

import math
from typing import Any, NamedTuple

from segue.config import Reading
from segue.infer.evaluate import Score, scored, surprises, targets_of
from segue.nn.engine import Engine
from segue.nn.invariant import check_invariant, invariant
from segue.nn.language import LanguageModel
from segue.progress import Report, silent
from segue.text.corpus import Stream

SUM_STEPS = 2**40
"""Steps of a nat. Cross-entropies are summed as whole numbers of them, whose order makes no difference."""


class Invariant(NamedTuple):
    """Read in so many lanes, with a result that does not show it."""

    lanes: int = 1


def evaluate_invariant(
    model: LanguageModel | Engine[Any],
    stream: Stream,
    reading: Reading,
    mode: Invariant = Invariant(),  # noqa: B008  (a value)
    *,
    limit: int | None = None,
    documents: bool = True,
    report: Report = silent,
) -> Score:
    """As `evaluate`, and the same to the last bit however it is read.

    The length of a segment makes no difference where it makes none in principle: with a span of at most memory + 1
    (`Reading.seamless`). Else a token sees more or fewer keys, by where in its segment it stands.
    """
    engine, total = model.frozen(), targets_of(stream, limit)
    check_invariant(engine, reading)
    steps, done = 0, 0
    with invariant():
        for surprise in surprises(engine, stream, reading, total, lanes=mode.lanes, documents=documents):
            if not surprise.isfinite().all():
                return scored(stream, math.nan, total)
            steps, done = (
                steps + sum(int(nats * SUM_STEPS) for nats in surprise.tolist()),
                done + len(surprise),
            )
            report("evaluating", done, total)
    assert done == total, "every target is scored once"
    return scored(stream, steps / SUM_STEPS, total)
