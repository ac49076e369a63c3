"""Labelled examples as input of an encoder: ids with [CLS] and [SEP], and what is to be predicted.

Long sentences and contexts are read in overlapping windows; other long texts are cut.
"""

from collections.abc import Sequence
from typing import NamedTuple

from segue.errors import InputError
from segue.text.examples import LabelledText, Question, ScoredText, TaggedWords, text_of
from segue.text.text_batches import IGNORED_LABEL
from segue.text.windows import owners, windows
from segue.text.wordpiece import Pieces, PlacedPieces, WordPiece

MAX_QUESTION, MAX_STRIDE = 64, 128
"""BERT's for SQuAD: pieces of a question that are read, and pieces from one window's start to the next."""

Target = int | float | list[int]
"""A label's number, a score, the tag number of every token, or the first and last token of a span."""


class Labelled(NamedTuple):
    """One text as an encoder reads it, and its target."""

    pieces: Pieces
    target: Target


class Window(NamedTuple):
    """A part of a sentence or context as an encoder reads it."""

    pieces: Pieces
    tokens: range  # of the whole text's tokens
    offset: int  # the first of them is this token of the window
    owned: list[bool]  # for each of them: no other window shows more of what is around it


def sentence_windows(sentence: PlacedPieces, max_length: int, tokenizer: WordPiece) -> list[Window]:
    """`[CLS] sentence [SEP]`, in windows if it is longer."""
    return _windows(None, sentence.ids, max_length, tokenizer)


def question_windows(
    question: PlacedPieces, context: PlacedPieces, max_length: int, tokenizer: WordPiece
) -> list[Window]:
    """`[CLS] question [SEP] context [SEP]`, a window for each part of the context. A long question is cut."""
    asked = question.ids[: min(MAX_QUESTION, max_length // 4)]
    return _windows(asked, context.ids, max_length, tokenizer)


def _windows(first: list[int] | None, ids: list[int], max_length: int, tokenizer: WordPiece) -> list[Window]:
    cls, sep = tokenizer.around
    lead = [cls] if first is None else [cls, *first, sep]
    room = max_length - len(lead) - 1
    cut = windows(len(ids), room, min(MAX_STRIDE, max(1, room // 2)))
    owner = owners(cut)
    made = []
    for number, window in enumerate(cut):
        inside = [*ids[window.start : window.stop], sep]
        types = [0] * len(lead) + [int(first is not None)] * len(inside)
        owned = [owner[token] == number for token in window]
        made.append(Window(Pieces([*lead, *inside], types, len(cut) > 1), window, len(lead), owned))
    return made


def labelled_texts(
    examples: Sequence[LabelledText | ScoredText],
    labels: Sequence[str],
    tokenizer: WordPiece,
    max_length: int,
) -> list[Labelled]:
    """One for each example; a text that is too long is cut."""
    numbers = {label: number for number, label in enumerate(labels)}
    pieces = tokenizer.pieces([text_of(example) for example in examples], max_length)
    targets = [one.score if isinstance(one, ScoredText) else numbers[one.label] for one in examples]
    return [Labelled(*both) for both in zip(pieces, targets, strict=True)]


def labelled_sentences(
    examples: Sequence[TaggedWords], labels: Sequence[str], tokenizer: WordPiece, max_length: int
) -> list[Labelled]:
    """Windows of sentences; a word's first piece has its tag, and no other token has one."""
    numbers = {label: number for number, label in enumerate(labels)}
    made = []
    placed = tokenizer.placed([example.words for example in examples])
    for example, sentence in zip(examples, placed, strict=True):
        first = first_pieces(sentence)
        for window in sentence_windows(sentence, max_length, tokenizer):
            target = [IGNORED_LABEL] * len(window.pieces.ids)
            for word, piece in first.items():
                if piece in window.tokens:
                    target[window.offset + piece - window.tokens.start] = numbers[example.tags[word]]
            if any(tag != IGNORED_LABEL for tag in target):
                made.append(Labelled(window.pieces, target))
    return made


def first_pieces(sentence: PlacedPieces) -> dict[int, int]:
    """The first piece of each word that has one."""
    first: dict[int, int] = {}
    for piece, word in enumerate(sentence.words):
        first.setdefault(word, piece)
    return first


def labelled_questions(examples: Sequence[Question], tokenizer: WordPiece, max_length: int) -> list[Labelled]:
    """Windows with the first of a question's answers, and at most one without it, whose span is [CLS].

    All windows without an answer would swamp long contexts: an encoder would learn to say nothing.
    """
    made = []
    asked = tokenizer.placed([example.question for example in examples])
    contexts = tokenizer.placed([example.context for example in examples])
    for example, question, context in zip(examples, asked, contexts, strict=True):
        span = _tokens_of(example, context)
        unanswered = 0
        for window in question_windows(question, context, max_length, tokenizer):
            if span is not None and span[0] in window.tokens and span[1] in window.tokens:
                shift = window.offset - window.tokens.start
                made.append(Labelled(window.pieces, [token + shift for token in span]))
            elif not unanswered:
                unanswered += 1
                made.append(Labelled(window.pieces, [0, 0]))
    return made


def _tokens_of(example: Question, context: PlacedPieces) -> tuple[int, int] | None:
    """The first and last token of the first answer; None without an answer, or if no token of it is left."""
    if not example.answers:
        return None
    answer = example.answers[0]
    begin, end = answer.answer_start, answer.answer_start + len(answer.text)
    inside = [token for token, (first, last) in enumerate(context.places) if first < end and last > begin]
    return (inside[0], inside[-1]) if inside else None


def check_types(types: int, pairs: bool) -> None:
    """Refuse pairs for an encoder that cannot tell their texts apart."""
    if pairs and types < 2:
        raise InputError("this encoder reads no pairs: it knows one type of text")
