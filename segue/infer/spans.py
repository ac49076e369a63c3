"""Decoding spans: the best pairs of first and last token over all windows of a context. Pure functions.

Letters: S tokens of a window that belong to the context, L the longest span.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_SPAN = 30
"""Tokens of an answer at most, as BERT had it."""


class WindowScores(NamedTuple):
    """What the head says of one window."""

    begin: int  # the number of its first context token in the whole context
    starts: Tensor  # (S,) logits: the answer begins here
    ends: Tensor  # (S,) logits: it ends here
    owned: Tensor  # (S,) True: no other window shows more context of this token, so spans may begin here
    null: float  # the logits of [CLS], added: there is no answer in this window


class TokenSpan(NamedTuple):
    """A span of the context's tokens, both ends included, and its score: the logits of both ends, added."""

    score: float
    first: int
    last: int


class Decoded(NamedTuple):
    """The best spans, the best first; what the scores of all spans add up to; and the score of no answer."""

    spans: list[TokenSpan]
    total: float  # the logarithm of the sum of e^score; -inf without a span
    null: float  # the least over all windows: every window must see no answer


def decode_spans(windows: Sequence[WindowScores], top: int, longest: int = MAX_SPAN) -> Decoded:
    """The `top` best spans of at most `longest` tokens that lie in one window and begin in it with most context."""
    spans: list[TokenSpan] = []
    totals = []
    for window in windows:
        size = len(window.starts)
        if not size:
            continue
        ends = F.pad(window.ends, (0, longest - 1), value=-math.inf).unfold(
            0, longest, 1
        )  # (S, L): from i on
        scores = (window.starts[:, None] + ends).masked_fill(~window.owned[:, None], -math.inf)
        totals.append(scores.flatten().logsumexp(0))
        best, places = scores.flatten().topk(min(top, scores.numel()))
        for score, place in zip(best.tolist(), places.tolist(), strict=True):
            if score > -math.inf:
                first, more = divmod(place, longest)
                spans.append(TokenSpan(score, window.begin + first, window.begin + first + more))
    total = torch.stack(totals).logsumexp(0).item() if totals else -math.inf
    ordered = heapq.nsmallest(top, spans, key=lambda span: (-span.score, span.first, span.last))
    return Decoded(ordered, total, min(window.null for window in windows))
