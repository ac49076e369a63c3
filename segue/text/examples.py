"""Labelled examples on disk: texts with a label or score, words with tags, questions with spans of a context.

    examples.json     the header: task, labels, splits, checksums
    train.jsonl …     one example per line, for each split
    tokenizer.json    WordPiece learned from the training texts, for an encoder that begins with nothing

The files hold texts and no token ids: an encoder that is fine-tuned brings its own tokenizer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, NonNegativeInt, PositiveInt, model_validator

from segue.checksums import file_checksum
from segue.config import HeadConfig, Settings
from segue.errors import ConfigError, InputError, SourceError
from segue.files import atomic_folder, is_file
from segue.progress import Report
from segue.text.corpus import TOKENIZER, check_checksums
from segue.text.parsing import parse_json, read_object
from segue.text.sources import rows_of
from segue.text.wordpiece import Text, WordPiece, read_wordpiece

HEADER = "examples.json"
OUTSIDE = "O"
"""The tag of a word outside of every entity."""

ExampleTask = Literal["classify", "pairs", "tag", "answer"]


def _readable(text: str) -> str:
    if not text.strip():
        raise ValueError("a text is empty")
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can hold half of a surrogate pair
        raise ValueError("a text holds half a character") from None
    return text


def _unbroken(word: str) -> str:
    if len(word.split()) != 1:
        raise ValueError(f"a word should be neither empty nor hold a space; found {word!r}")
    return _readable(word)


def _one_or_two(texts: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(texts) <= 2:
        raise ValueError(f"there should be one text or two; found {len(texts)}")
    return texts


FullText = Annotated[str, AfterValidator(_readable)]
Word = Annotated[str, AfterValidator(_unbroken)]
Texts = Annotated[tuple[FullText, ...], AfterValidator(_one_or_two)]
"""(A union of two tuples, or a field's own bounds, would complain twice.)"""


class LabelledText(Settings):
    """One text or two, and their label."""

    texts: Texts
    label: FullText

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.texts

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,)


class ScoredText(Settings):
    """One text or two, and their score."""

    texts: Texts
    score: float

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.texts

    @property
    def labels(self) -> tuple[str, ...]:
        return ()


class TaggedWords(Settings):
    """A sentence: its words, and the tag of each."""

    words: tuple[Word, ...]
    tags: tuple[Word, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return (" ".join(self.words),)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tags

    @model_validator(mode="after")
    def _a_tag_for_each_word(self) -> Self:
        if not self.words:
            raise ValueError("the sentence has no words")
        if len(self.words) != len(self.tags):
            raise ValueError(f"there are {len(self.words)} words and {len(self.tags)} tags")
        return self


class Answer(Settings):
    """A span of a context."""

    text: FullText
    answer_start: NonNegativeInt  # its first character


class Question(Settings):
    """A question on a context, with the answers that people gave. No answer: the context does not say."""

    name: str
    question: FullText
    context: FullText
    answers: tuple[Answer, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.context, self.question)

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @model_validator(mode="after")
    def _answers_lie_in_the_context(self) -> Self:
        for answer in self.answers:
            start = answer.answer_start
            here = self.context[start : start + len(answer.text)]
            if here != answer.text:
                place = self.context.find(answer.text)
                hint = f"it is at {place}" if place >= 0 else "it is not in the context"
                raise ValueError(
                    f"the answer {answer.text[:60]!r} does not lie at character {start} of the context, where "
                    f"{here[:60]!r} is; {hint}"
                )
        return self


Example = LabelledText | ScoredText | TaggedWords | Question
Examples = Callable[[], Iterator[tuple[str, Example]]]
"""Examples with their names ("line 3 of train.tsv"), as a function: each call reads them from the beginning."""

Kind = TypeVar("Kind", bound=Settings)


def made(kind: type[Kind], name: str, values: Mapping[str, Any]) -> Kind:
    """An example of this kind; an error begins with its name, such as "line 3 of train.tsv"."""
    try:
        return kind(**values)
    except ConfigError as error:
        raise SourceError(f"{name}: {str(error).removeprefix(f'{kind.__name__}: ')}") from None


class ExamplesSplit(Settings):
    """How much a split holds."""

    examples: PositiveInt
    unanswered: NonNegativeInt = 0  # questions without an answer


class ExamplesHeader(Settings):
    """The content of examples.json."""

    format: Literal["segue-examples-1"] = "segue-examples-1"
    task: ExampleTask
    score: bool = False  # a number to predict, in place of labels
    labels: tuple[str, ...] = ()
    vocab: PositiveInt  # of the tokenizer beside it
    splits: dict[str, ExamplesSplit]
    checksums: dict[str, str]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.head  # noqa: B018 (it checks task and labels)
        if "train" not in self.splits:
            raise ValueError(f"there are no examples to train on in the splits {list(self.splits)}")
        if any(not name.isidentifier() for name in self.splits):
            raise ValueError(f"a split's name should be a word; found {list(self.splits)}")
        return self

    @property
    def head(self) -> HeadConfig:
        """The head of an encoder that learns these examples."""
        pairs = self.task == "pairs"
        if self.score:
            return HeadConfig(task="score", pairs=pairs)
        if self.task == "answer":
            return HeadConfig(task="span", no_answer=self.splits["train"].unanswered > 0)
        return HeadConfig(task="tags" if self.task == "tag" else "text", labels=self.labels, pairs=pairs)

    @property
    def kind(self) -> type[Example]:
        if self.score:
            return ScoredText
        kinds: dict[str, type[Example]] = {"tag": TaggedWords, "answer": Question}
        return kinds.get(self.task, LabelledText)


@dataclass(frozen=True, eq=False)
class ExampleSet:
    """Prepared examples, opened and verified."""

    folder: Path
    header: ExamplesHeader
    tokenizer: WordPiece

    def examples(self, split: str) -> list[Example]:
        """All examples of a split."""
        self.check_split(split)
        file, kind = self.folder / f"{split}.jsonl", self.header.kind
        kept: list[Example] = []
        with file.open("rb") as opened:
            for number, line in enumerate(rows_of(opened, file), start=1):
                name = f"line {number} of {file}"
                values = parse_json(line, name)
                if not isinstance(values, dict):
                    raise SourceError(f"{name} should be an object; found {type(values).__name__}")
                kept.append(made(kind, name, values))
                _check_example(kept[-1], name, self.header)
        if len(kept) != self.header.splits[split].examples:
            raise SourceError(
                f"{file} holds {len(kept):,} examples, and its header says otherwise; prepare it again"
            )
        return kept

    def with_tokenizer(self, tokenizer: WordPiece) -> "ExampleSet":
        """The same examples for an encoder that brings its own tokenizer."""
        return replace(self, tokenizer=tokenizer)

    def check_split(self, split: str) -> None:
        if split not in self.header.splits:
            raise InputError(f"{self.folder} has no split '{split}'; it has {', '.join(self.header.splits)}")


def _check_example(example: Example, name: str, header: ExamplesHeader) -> None:
    """Refuse half a pair, two texts where one is wanted, and labels that training does not know."""
    if isinstance(example, LabelledText | ScoredText) and (len(example.texts) > 1) != (
        header.task == "pairs"
    ):
        raise SourceError(
            f"{name} holds {len(example.texts)} texts, which do not fit the task {header.task!r}"
        )
    unseen = set(example.labels) - set(header.labels)
    if unseen:
        raise _unseen(name, min(unseen), header.labels)


def _unseen(name: str, label: str, labels: tuple[str, ...]) -> SourceError:
    known = ", ".join(labels[:10]) + (" …" if len(labels) > 10 else "")
    return SourceError(f"{name}: the label {label!r} does not occur in training, which has {known}")


def by_shares(examples: Examples, shares: Mapping[str, float]) -> dict[str, Examples]:
    """Splits by a hash of the first text, so that equal texts (or contexts) are in one split; the rest is `train`."""

    def split_of(example: Example) -> str:
        draw = int.from_bytes(sha256(example.inputs[0].encode()).digest()[:8]) / 2**64
        for split, share in shares.items():
            if draw < share:
                return split
            draw -= share
        return "train"

    def part(split: str) -> Examples:
        return lambda: (named for named in examples() if split_of(named[1]) == split)

    return {split: part(split) for split in ("train", *shares)}


def prepare_examples(
    parts: Mapping[str, Examples],
    folder: Path,
    task: ExampleTask,
    *,
    score: bool,
    vocabulary: Callable[[Iterator[str]], WordPiece],
    report: Report,
) -> ExamplesHeader:
    """Write the examples of all splits atomically, `train` first; `vocabulary` makes a tokenizer of its texts."""
    with atomic_folder(folder, SourceError) as fresh:
        labels: tuple[str, ...] = ()
        splits: dict[str, ExamplesSplit] = {}
        for split in sorted(parts, key=lambda name: name != "train"):
            counts: Counter[str] = Counter()
            unanswered = written = 0
            with (fresh / f"{split}.jsonl").open("wb") as file:
                for name, example in parts[split]():
                    if splits and (unseen := set(example.labels) - set(labels)):
                        raise _unseen(name, min(unseen), labels)
                    counts.update(example.labels)
                    unanswered += isinstance(example, Question) and not example.answers
                    file.write(example.model_dump_json().encode() + b"\n")
                    written += 1
                    report(f"writing {split}", written, 0)
            if not written:
                raise SourceError(f"there are no examples for {split}; use another file, or another share")
            if not splits:
                labels = _in_order(counts, written, tags=task == "tag")
            splits[split] = ExamplesSplit(examples=written, unanswered=unanswered)
        tokenizer = vocabulary(text for _, example in parts["train"]() for text in example.inputs)
        (fresh / TOKENIZER).write_text(tokenizer.json(), encoding="utf-8")
        names = [TOKENIZER, *(f"{split}.jsonl" for split in splits)]
        header = _header(
            task=task,
            score=score,
            labels=labels,
            vocab=tokenizer.size,
            splits=splits,
            checksums={name: file_checksum(fresh / name) for name in names},
        )
        (fresh / HEADER).write_text(header.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return header


def _header(**values: Any) -> ExamplesHeader:
    try:
        return ExamplesHeader(**values)
    except ConfigError as error:
        raise SourceError(f"these examples cannot be learned: {error}") from None


def _in_order(counts: Counter[str], examples: int, *, tags: bool) -> tuple[str, ...]:
    """The labels in alphabetical order, `O` first. As many labels as examples are a wrong column."""
    if not tags and len(counts) > 20 and 2 * len(counts) > examples:
        raise SourceError(
            f"the {examples:,} examples have {len(counts):,} different labels, such as {min(counts)[:40]!r}; "
            "is it the right column? The label comes first, or name the columns with --columns"
        )
    return tuple(sorted(counts, key=lambda label: (label != OUTSIDE, label)))


def open_examples(folder: Path | str) -> ExampleSet:
    """Open examples that `segue prepare-examples` made, and verify its files."""
    folder = Path(folder)
    if not is_file(folder / HEADER):
        raise SourceError(
            f"{folder} holds no prepared examples (it has no {HEADER}); make them: segue prepare-examples"
        )
    header = ExamplesHeader(**read_object(folder / HEADER))
    check_checksums(folder, header.checksums, [TOKENIZER, *(f"{split}.jsonl" for split in header.splits)])
    tokenizer = read_wordpiece(folder / TOKENIZER)
    if tokenizer.size != header.vocab:
        raise SourceError(
            f"{folder} has {header.vocab:,} symbols and its tokenizer {tokenizer.size:,}; prepare it again"
        )
    return ExampleSet(folder, header, tokenizer)


def text_of(example: LabelledText | ScoredText) -> Text:
    """As the tokenizer takes it: a text, or a pair."""
    first, *second = example.texts
    return (first, second[0]) if second else first
