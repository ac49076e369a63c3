"""Answers to questions: the best spans of a context, by an encoder with a head for spans."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from segue.checkpoint import TextEncoder
from segue.errors import InputError
from segue.infer.classify import check_head
from segue.infer.spans import Decoded, TokenSpan, WindowScores, decode_spans
from segue.infer.tag import window_logits
from segue.progress import Report, silent
from segue.text.example_pieces import Window, check_types, question_windows


class Span(NamedTuple):
    """A part of the context: its characters from `start` up to `end`."""

    text: str
    start: int
    end: int
    score: float  # the logits of its ends, added, above those of "no answer"
    probability: float  # among all spans, and "no answer" if the encoder has learned to say that


class Answered(NamedTuple):
    """The best spans of a context, the best first."""

    spans: list[Span]
    no_answer: bool  # none of them is good enough
    null_probability: float  # of "no answer"; 0 if the encoder has not learned to say that

    @property
    def text(self) -> str:
        """The best answer; empty if there is none."""
        return "" if self.no_answer else self.spans[0].text


def answer(
    encoder: TextEncoder,
    questions: Sequence[tuple[str, str]],
    *,
    top: int = 1,
    threshold: float | None = None,
    report: Report = silent,
) -> list[Answered]:
    """The best spans for each question and context.

    The best one is an answer if its score is above the threshold. Without one it is 0 for an encoder that was trained
    on questions without an answer; another always answers. Long contexts are read in overlapping windows.
    """
    check_head(encoder, "span")
    check_types(encoder.model.config.types, pairs=True)
    if top < 1:
        raise InputError(f"top should be 1 or more; found {top}")
    for number, texts in enumerate(questions, start=1):
        if not all(text.strip() for text in texts):
            raise InputError(f"question {number:,} or its context is empty")
    tokenizer, max_length = encoder.tokenizer, encoder.reading.max_length
    asked = tokenizer.placed([question for question, _ in questions])
    contexts = tokenizer.placed([context for _, context in questions])
    cut = [
        question_windows(question, context, max_length, tokenizer)
        for question, context in zip(asked, contexts, strict=True)
    ]
    logits = iter(window_logits(encoder, [window for windows in cut for window in windows], report))
    answers = []
    for (_, text), context, windows in zip(questions, contexts, cut, strict=True):
        scores = [_scores(window, next(logits)) for window in windows]
        answers.append(_answered(encoder, decode_spans(scores, top), text, context.places, threshold))
    return answers


def _scores(window: Window, logits: Tensor) -> WindowScores:
    """What the head says of a window's context."""
    logits = logits.float().cpu()
    starts, ends = logits[window.offset : window.offset + len(window.tokens)].unbind(-1)
    return WindowScores(window.tokens.start, starts, ends, torch.tensor(window.owned), float(logits[0].sum()))


def _answered(
    encoder: TextEncoder,
    decoded: Decoded,
    context: str,
    places: Sequence[tuple[int, int]],
    threshold: float | None,
) -> Answered:
    head = encoder.model.task
    assert head is not None
    null = decoded.null if head.no_answer else -math.inf
    total = _log_add(decoded.total, null)

    def placed(span: TokenSpan) -> Span:
        begin, end = places[span.first][0], places[span.last][1]
        share = math.exp(span.score - total)
        return Span(context[begin:end], begin, end, span.score - decoded.null, share)

    spans = [placed(span) for span in decoded.spans]
    least = threshold if threshold is not None else 0.0 if head.no_answer else -math.inf
    no_answer = not spans or spans[0].score <= least
    return Answered(spans, no_answer, math.exp(null - total) if null > -math.inf else 0.0)


def _log_add(one: float, other: float) -> float:
    """The logarithm of e^one + e^other."""
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
