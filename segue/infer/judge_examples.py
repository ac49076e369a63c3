"""How good an encoder is at its task: its predictions for labelled examples beside the right ones."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from segue.checkpoint import TextEncoder
from segue.config import HeadConfig
from segue.errors import InputError
from segue.infer.answer import Answered, answer
from segue.infer.classify import classified, scored
from segue.infer.metrics import (
    accuracy,
    answer_f1,
    are_entities,
    confusion,
    entity_scores,
    exact_match,
    macro_f1,
    pearson,
    spearman,
)
from segue.infer.tag import tag
from segue.progress import Report, silent
from segue.text.examples import Example, LabelledText, Question, ScoredText, TaggedWords, text_of

BLOCK = 512
"""Examples that are read between two reports."""


class ExampleScores(NamedTuple):
    """Figures by name, the one that counts first; of labels also the confusion matrix."""

    examples: int
    figures: dict[str, float]
    truncated: int = 0  # texts that were longer than the encoder reads
    confusion: list[list[int]] | None = None  # a row for each right label, a column for each predicted one

    @property
    def main(self) -> float:
        """The figure that tells which of two models is better; more is better."""
        return next(iter(self.figures.values()))


def judge_examples(
    encoder: TextEncoder, examples: Sequence[Example], report: Report = silent
) -> ExampleScores:
    """Predict, and compare. All examples are of the kind that the encoder's head was made for."""
    check_labels(encoder, examples)
    judge = {"text": _labels, "score": _scores, "tags": _tags, "span": _spans}[
        check_labelled_head(encoder).task
    ]
    return judge(encoder, examples, report)


KINDS: dict[str, type[Example]] = {
    "text": LabelledText,
    "score": ScoredText,
    "tags": TaggedWords,
    "span": Question,
}
"""The kind of example for each kind of head."""


def check_labelled_head(encoder: TextEncoder) -> HeadConfig:
    """Refuse an encoder without a head, or with one for masked words."""
    head = encoder.model.task
    if head is None or head.task not in KINDS:
        raise InputError(
            "this encoder has no head for labelled examples; fine-tune it: segue train … --from ENCODER"
        )
    return head


def check_labels(encoder: TextEncoder, examples: Sequence[Example]) -> None:
    """Refuse examples of another task, and labels that the encoder was not trained on."""
    head = check_labelled_head(encoder)
    known = set(head.labels)
    for number, example in enumerate(examples, start=1):
        if not isinstance(example, KINDS[head.task]):
            raise InputError(
                f"this encoder has a head for the task {head.task!r}, and these examples are for another task"
            )
        if isinstance(example, LabelledText | ScoredText) and (len(example.texts) > 1) != head.pairs:
            raise InputError(
                f"this encoder was trained on {'pairs' if head.pairs else 'single texts'}; these are not"
            )
        unseen = set(example.labels) - known
        if unseen:
            raise InputError(
                f"example {number:,} has the label {min(unseen)!r}, which the encoder was not trained on; "
                f"it knows {', '.join(head.labels[:10])}{' …' if len(head.labels) > 10 else ''}"
            )


def _blocks(examples: Sequence[Example], report: Report) -> Any:
    for begin in range(0, len(examples), BLOCK):
        yield examples[begin : begin + BLOCK]
        report("predicting", min(begin + BLOCK, len(examples)), len(examples))


def _pieces(encoder: TextEncoder, examples: Sequence[Any]) -> Any:
    return encoder.tokenizer.pieces([text_of(one) for one in examples], encoder.reading.max_length)


def _labels(encoder: TextEncoder, examples: Sequence[Any], report: Report) -> ExampleScores:
    assert encoder.model.task is not None
    predicted: list[str] = []
    truncated = 0
    for block in _blocks(examples, report):
        pieces = _pieces(encoder, block)
        truncated += sum(one.truncated for one in pieces)
        predicted += [one.label for one in classified(encoder, pieces)]
    wanted = [one.label for one in examples]
    figures = {"accuracy": accuracy(predicted, wanted), "macro_f1": macro_f1(predicted, wanted)}
    table = confusion(predicted, wanted, encoder.model.task.labels)
    return ExampleScores(len(wanted), figures, truncated, table)


def _scores(encoder: TextEncoder, examples: Sequence[Any], report: Report) -> ExampleScores:
    predicted: list[float] = []
    truncated = 0
    for block in _blocks(examples, report):
        pieces = _pieces(encoder, block)
        truncated += sum(one.truncated for one in pieces)
        predicted += scored(encoder, pieces)
    wanted = [one.score for one in examples]
    error = sum((ours - theirs) ** 2 for ours, theirs in zip(predicted, wanted, strict=True)) / len(wanted)
    figures = {
        "pearson": pearson(predicted, wanted),
        "spearman": spearman(predicted, wanted),
        "mean_squared_error": error,
    }
    return ExampleScores(len(wanted), figures, truncated)


def _tags(encoder: TextEncoder, examples: Sequence[Any], report: Report) -> ExampleScores:
    assert encoder.model.task is not None
    predicted: list[list[str]] = []
    for block in _blocks(examples, report):
        predicted += tag(encoder, [one.words for one in block])
    wanted = [one.tags for one in examples]
    ours, theirs = ([label for tags in side for label in tags] for side in (predicted, wanted))
    by_word = {"accuracy": accuracy(ours, theirs), "macro_f1": macro_f1(ours, theirs)}
    table = confusion(ours, theirs, encoder.model.task.labels)
    if not are_entities(encoder.model.task.labels):
        return ExampleScores(len(wanted), by_word, 0, table)
    precision, recall, f1 = entity_scores(predicted, wanted)
    figures = {"entity_f1": f1, "precision": precision, "recall": recall, "accuracy": by_word["accuracy"]}
    return ExampleScores(len(wanted), figures, 0, table)


def _spans(encoder: TextEncoder, examples: Sequence[Any], report: Report) -> ExampleScores:
    answers: list[Answered] = []
    for block in _blocks(examples, report):
        answers += answer(encoder, [(one.question, one.context) for one in block])
    wanted = [[right.text for right in one.answers] for one in examples]
    texts = [one.text for one in answers]
    figures = {
        "f1": _mean(answer_f1, texts, wanted),
        "exact_match": _mean(exact_match, texts, wanted),
    }
    if not all(wanted):
        figures |= best_threshold(answers, wanted)
    return ExampleScores(len(wanted), figures)


def _mean(
    metric: Callable[[str, Sequence[str]], float], texts: Sequence[str], wanted: Sequence[Sequence[str]]
) -> float:
    return sum(metric(text, right) for text, right in zip(texts, wanted, strict=True)) / len(wanted)


def best_threshold(answers: Sequence[Answered], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """The threshold with the best F1, and that F1: all answers below it are "no answer" (SQuAD 2.0's best_f1)."""
    best = [one.spans[0] if one.spans else None for one in answers]
    # from a threshold above all scores down: each question changes from "no answer" to its best span
    total = float(sum(not right for right in wanted))
    highest, at = total, max((span.score for span in best if span is not None), default=0.0)
    ranked = sorted(
        (
            (span.score, answer_f1(span.text, right) - float(not right))
            for span, right in zip(best, wanted, strict=True)
            if span
        ),
        reverse=True,
    )
    for place, (score, gain) in enumerate(ranked):
        total += gain
        following = ranked[place + 1][0] if place + 1 < len(ranked) else score - 1.0
        if total > highest and following < score:
            highest, at = total, (score + following) / 2
    return {"best_f1": highest / len(wanted), "best_threshold": at}
