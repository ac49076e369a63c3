"""Files of labelled examples: TSV, JSONL, CoNLL columns, SQuAD's JSON. Every error names the line."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from segue.errors import SourceError
from segue.text.examples import (
    Example,
    Examples,
    ExampleTask,
    LabelledText,
    Question,
    ScoredText,
    TaggedWords,
    made,
)
from segue.text.parsing import parse_json
from segue.text.sources import COMPRESSED, open_any, rows_of

COLUMNS: dict[ExampleTask, tuple[str, ...]] = {
    "classify": ("label", "text"),
    "pairs": ("label", "text", "second"),
    "tag": ("words", "tags"),
    "answer": ("question", "context", "answers"),
}
"""The columns of each task; in a TSV file in this order, in JSONL and under `--columns` by name."""

DOCUMENT_START = "-DOCSTART-"
"""The line that begins a document in CoNLL files; it is no word."""


def read_examples(
    path: Path, task: ExampleTask, *, score: bool = False, columns: Sequence[str] = ()
) -> Examples:
    """The examples of a file; its name says the format. `columns` are its names for ours, in our order."""
    plain = path.with_suffix("") if path.suffix in COMPRESSED else path
    wanted = COLUMNS[task]
    if columns and len(columns) != len(wanted):
        raise SourceError(
            f"--columns should name {len(wanted)} columns for {', '.join(wanted)}; found {len(columns)}"
        )
    if plain.suffix == ".jsonl":
        return lambda: _from_rows(path, task, score, columns or _usual(task, score))
    if columns and task not in ("classify", "pairs"):
        raise SourceError(f"--columns is for .jsonl and .tsv files; found {path.name} for the task {task!r}")
    if task == "tag":
        return lambda: _from_conll(path)
    if task == "answer":
        return lambda: _from_squad(path)
    return lambda: _from_tabs(path, task, score, columns)


def _usual(task: ExampleTask, score: bool) -> tuple[str, ...]:
    names = COLUMNS[task]
    return ("score", *names[1:]) if score else names


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with its name, decoded."""
    with open_any(path) as file:
        for number, line in enumerate(rows_of(file, path), start=1):
            name = f"line {number:,} of {path}"
            try:
                yield name, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise SourceError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None


def _text_example(name: str, fields: Sequence[Any], score: bool) -> Example:
    """Of a label or score, and one text or two."""
    first, *texts = fields
    if len(texts) == 2 and not all(isinstance(text, str) and text.strip() for text in texts):
        raise SourceError(f"{name} holds half a pair: one of its two texts is empty")
    if not score:
        label = str(first) if isinstance(first, int) else first
        return made(LabelledText, name, {"texts": texts, "label": label})
    try:
        number = float(first)
    except (TypeError, ValueError, OverflowError):
        raise SourceError(f"{name}: the score should be a number; found {str(first)[:60]!r}") from None
    return made(ScoredText, name, {"texts": texts, "score": number})


def _from_tabs(
    path: Path, task: ExampleTask, score: bool, columns: Sequence[str]
) -> Iterator[tuple[str, Example]]:
    wanted = _usual(task, score)
    places, size = list(range(len(wanted))), len(wanted)
    lines = _lines(path)
    if columns:
        names = next(lines, ("", ""))[1].split("\t")
        missing = [column for column in columns if column not in names]
        if missing:
            raise SourceError(
                f"the first line of {path} names no column {missing[0]!r}; it has {', '.join(names)}"
            )
        places, size = [names.index(column) for column in columns], len(names)
    for name, line in lines:
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != size:
            expected = "its first line has" if columns else f"{', '.join(wanted)} make"
            more = " (a pair needs both of its texts)" if task == "pairs" and len(fields) == 2 else ""
            raise SourceError(
                f"{name} has {len(fields)} column{'s'[: len(fields) > 1]}; {expected} {size}, "
                f"with a tab between them{more}"
            )
        yield name, _text_example(name, [fields[place] for place in places], score)


def _from_rows(
    path: Path, task: ExampleTask, score: bool, columns: Sequence[str]
) -> Iterator[tuple[str, Example]]:
    for name, line in _lines(path):
        row = parse_json(line, name)
        keys = list(row) if isinstance(row, dict) else []
        missing = [column for column in columns if column not in keys]
        if missing:
            raise SourceError(
                f"{name} has nothing under {missing[0]!r}; it has {', '.join(keys) or 'no names'}"
            )
        values = [row[column] for column in columns]
        if task == "tag":
            yield name, made(TaggedWords, name, {"words": values[0], "tags": values[1]})
        elif task == "answer":
            yield name, _question(name, str(row.get("id", name)), values)
        else:
            yield name, _text_example(name, values, score)


def _from_conll(path: Path) -> Iterator[tuple[str, Example]]:
    """Sentences: a line for each word, which is the first column, its tag the last; an empty line between them."""
    words: list[str] = []
    tags: list[str] = []
    first, size = "", 0
    for name, line in _lines(path):
        columns = line.split()
        if not columns or columns[0] == DOCUMENT_START:
            if words:
                yield first, made(TaggedWords, first, {"words": words, "tags": tags})
            words, tags = [], []
            continue
        size = size or len(columns)
        if len(columns) != size or size < 2:
            raise SourceError(
                f"{name} has {len(columns)} column{'s'[: len(columns) > 1]}; "
                + (f"the lines before have {size}" if size > 1 else "a word and its tag are wanted")
            )
        first = first if words else name
        words.append(columns[0])
        tags.append(columns[-1])
    if words:
        yield first, made(TaggedWords, first, {"words": words, "tags": tags})


def _from_squad(path: Path) -> Iterator[tuple[str, Example]]:
    with open_any(path) as file:
        content = parse_json(_whole(file, path), str(path))
    for place, context, asked in _paragraphs(content, path):
        name = f"question {str(asked.get('id', place))[:60]!r} of {path}"
        answers = [] if asked.get("is_impossible") else asked.get("answers")
        yield name, _question(name, str(asked.get("id", place)), [asked.get("question"), context, answers])


def _whole(file: IO[bytes], path: Path) -> bytes:
    """The content of a file that must fit into memory: rows_of refuses lines that do not."""
    return b"".join(rows_of(file, path))


def _paragraphs(content: Any, path: Path) -> Iterator[tuple[int, Any, dict[str, Any]]]:
    """Each question with its number and context, as SQuAD nests them: data, paragraphs, qas."""
    place = 0
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    place += 1
                    if not isinstance(asked, dict):
                        raise TypeError
                    yield place, paragraph["context"], asked
    except (KeyError, TypeError):
        raise SourceError(
            f"{path} is not as SQuAD's files are: data, in it paragraphs with a context and qas "
            f"(after question {place:,})"
        ) from None


def _question(name: str, identity: str, values: Sequence[Any]) -> Question:
    """Of a question, a context and answers, as SQuAD or as Hugging Face's data sets write them."""
    question, context, answers = values
    if isinstance(answers, dict):  # two lists
        texts, starts = answers.get("text", ()), answers.get("answer_start", ())
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise SourceError(f"{name}: answers should have as many texts as places (text, answer_start)")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise SourceError(f"{name}: answers should be a list of objects with text and answer_start")
    answers = [{key: answer.get(key) for key in ("text", "answer_start")} for answer in answers]
    values_of = {"name": identity, "question": question, "context": context, "answers": answers}
    return made(Question, name, values_of)
