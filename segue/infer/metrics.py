"""Figures of predicted labels, scores, tags and answers beside the right ones. Pure functions.

Definitions are scikit-learn's (accuracy, macro-F1), SciPy's (Pearson, Spearman), seqeval's (entities) and
SQuAD 2.0's (exact match, F1 of words).
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class PrecisionRecall(NamedTuple):
    """How many of the found are right, how many of the right are found, and their harmonic mean."""

    precision: float
    recall: float
    f1: float


def precision_recall(right: int, found: int, wanted: int) -> PrecisionRecall:
    """Zero where there is nothing to divide by."""
    precision, recall = right / found if found else 0.0, right / wanted if wanted else 0.0
    total = precision + recall
    return PrecisionRecall(precision, recall, 2 * precision * recall / total if total else 0.0)


def accuracy(predicted: Sequence[str], wanted: Sequence[str]) -> float:
    return sum(ours == theirs for ours, theirs in zip(predicted, wanted, strict=True)) / len(wanted)


def macro_f1(predicted: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean F1 of the labels that were predicted or wanted."""
    found, there = Counter(predicted), Counter(wanted)
    right = Counter(ours for ours, theirs in zip(predicted, wanted, strict=True) if ours == theirs)
    labels = found | there
    return sum(precision_recall(right[one], found[one], there[one]).f1 for one in labels) / len(labels)


def confusion(predicted: Sequence[str], wanted: Sequence[str], labels: Sequence[str]) -> list[list[int]]:
    """Counts: a row for each right label, a column for each predicted one."""
    counts = Counter(zip(wanted, predicted, strict=True))
    return [[counts[row, column] for column in labels] for row in labels]


def pearson(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The linear correlation; 0 if one side is constant, where it is not defined."""
    means = [math.fsum(side) / len(side) for side in (ours, theirs)]
    first, second = (
        [value - mean for value in side] for side, mean in zip((ours, theirs), means, strict=True)
    )
    scale = math.sqrt(math.fsum(a * a for a in first)) * math.sqrt(math.fsum(b * b for b in second))
    return math.fsum(a * b for a, b in zip(first, second, strict=True)) / scale if scale else 0.0


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The correlation of ranks; equal values share their mean rank."""
    return pearson(_ranks(ours), _ranks(theirs))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + end - 1) / 2
        begin = end
    return ranks


class Entity(NamedTuple):
    """Words from `first` to `last`."""

    kind: str
    first: int
    last: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence as conlleval and seqeval (its default mode) read BIO, IOB and BIOES tags.

    An `I` that continues nothing begins an entity of its own.
    """
    kept: list[Entity] = []
    begin, before, kind_before = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, kind = tag[:1], tag[1:].split("-", 1)[-1] or "_"
        changes = kind != kind_before
        if (
            before in ("E", "S")
            or (before in ("B", "I") and prefix in ("B", "S", "O"))
            or (before != "O" and changes)
        ):
            kept.append(Entity(kind_before, begin, place - 1))
        afresh = before in ("E", "S", "O") and prefix in ("E", "I")
        if prefix in ("B", "S") or afresh or (prefix != "O" and changes):
            begin = place
        before, kind_before = prefix, kind
    return kept


def are_entities(labels: Sequence[str]) -> bool:
    """Whether the tags mark entities (`B-person`), and are not, say, parts of speech."""
    return "O" in labels and all(label == "O" or re.match(r"[BIES]-.", label) for label in labels)


def entity_scores(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> PrecisionRecall:
    """Of the entities of all sentences together: one is right if kind, first and last word are."""
    right = found = there = 0
    for ours, theirs in zip(predicted, wanted, strict=True):
        mine, yours = set(entities(ours)), set(entities(theirs))
        right, found, there = right + len(mine & yours), found + len(mine), there + len(yours)
    return precision_recall(right, found, there)


PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_words(answer: str) -> list[str]:
    """The words that count: in lower case, without punctuation and articles."""
    plain = answer.lower().translate(PUNCTUATION)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def exact_match(answer: str, wanted: Sequence[str]) -> float:
    """1 if it is one of the wanted answers, up to case, punctuation and articles. None wanted: it must be empty."""
    return max(float(answer_words(answer) == answer_words(one)) for one in _wanted(wanted))


def answer_f1(answer: str, wanted: Sequence[str]) -> float:
    """The best F1 of the answer's words among the wanted answers."""
    return max(_words_f1(answer_words(answer), answer_words(one)) for one in _wanted(wanted))


def _wanted(wanted: Sequence[str]) -> list[str]:
    return [one for one in wanted if answer_words(one)] or [""]


def _words_f1(ours: list[str], theirs: list[str]) -> float:
    if not ours or not theirs:
        return float(ours == theirs)
    return precision_recall((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs)).f1
