"""`segue prepare-examples`: labelled examples to disk, to fine-tune encoders."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segue.text.examples import Examples, ExamplesHeader
    from segue.text.wordpiece import WordPiece

EXAMPLE = "Example: segue prepare-examples train.tsv --valid valid.tsv --task classify -o data/polarity"


class Task(StrEnum):
    """What is learned from the examples."""

    CLASSIFY = "classify"
    PAIRS = "pairs"
    TAG = "tag"
    ANSWER = "answer"


def prepare_examples(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The examples to train on; also as .gz .xz .bz2 .zip.")
    ],
    task: Annotated[
        Task, typer.Option(help="Label a text, label a pair of texts, tag words, or answer questions.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")
    ] = Path("data/examples"),
    valid: Annotated[Path | None, typer.Option(metavar="FILE", help="The examples to validate with.")] = None,
    test: Annotated[Path | None, typer.Option(metavar="FILE", help="The examples to test with.")] = None,
    valid_share: Annotated[
        float, typer.Option(min=0, max=0.5, help="Without --valid: the share of FILE to hold out for it.")
    ] = 0.1,
    test_share: Annotated[
        float, typer.Option(min=0, max=0.4, help="Without --test: the share of FILE to hold out for it.")
    ] = 0.0,
    score: Annotated[
        bool, typer.Option("--score", help="A number in place of the label: regression, such as similarity.")
    ] = False,
    columns: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="The file's names for label,text (and second), words,tags or question,context,answers, with commas; "
            "the first line of a .tsv must then name its columns.",
        ),
    ] = "",
    size: Annotated[
        int,
        typer.Option(
            help="Vocabulary size of the WordPiece tokenizer for an encoder that begins with nothing."
        ),
    ] = 8192,
    tokenizer_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead: an existing WordPiece tokenizer.json or vocab.txt."),
    ] = None,
) -> None:
    """Check labelled examples and write them to disk, with their labels and splits.

    classify: a .tsv with label and text, in this order. pairs: label and two texts. tag: CoNLL columns, a word in the
    first column and its tag in the last, an empty line between sentences. answer: SQuAD's .json. All also as .jsonl,
    with the names label, text, second (or score), words, tags, question, context, answers. Held-out shares are chosen
    by a hash of the text, so equal texts stay together.
    """
    from segue.text.examples import prepare_examples as prepare

    if score and task not in (Task.CLASSIFY, Task.PAIRS):
        raise SourceError(f"--score is for --task classify and pairs; found --task {task.value}")
    parts = _parts(file, valid, test, {"valid": valid_share, "test": test_share}, task, score, columns)
    with Progress("examples") as progress:
        header = prepare(
            parts,
            output,
            task.value,
            score=score,
            vocabulary=lambda texts: _vocabulary(texts, tokenizer_file, size),
            report=progress.update,
        )
    for name, split in header.splits.items():
        without = f", {split.unanswered:,} without an answer" if split.unanswered else ""
        echo(f"{name:<6} {split.examples:>9,} examples{without}")
    echo(f"{output}: {_labels(header)}. Next: segue train {task.value}-cpu --from ENCODER --data {output}")


def _parts(
    file: Path,
    valid: Path | None,
    test: Path | None,
    shares: dict[str, float],
    task: Task,
    score: bool,
    columns: str,
) -> "dict[str, Examples]":
    from segue.text.example_files import read_examples
    from segue.text.examples import by_shares

    names = [name.strip() for name in columns.split(",")] if columns else []
    given = {name: path for name, path in (("valid", valid), ("test", test)) if path is not None}
    train = read_examples(file, task.value, score=score, columns=names)
    parts = by_shares(train, {name: share for name, share in shares.items() if share and name not in given})
    for name, path in given.items():
        parts[name] = read_examples(path, task.value, score=score, columns=names)
    return parts


def _vocabulary(texts: "Iterator[str]", file: Path | None, size: int) -> "WordPiece":
    from tokenizers import Tokenizer

    from segue.text.learn import train_wordpiece
    from segue.text.wordpiece import WordPiece, read_wordpiece

    if file is not None:
        return read_wordpiece(file)
    learned = train_wordpiece((f"{text}\n".encode() for text in texts), size, lower=True)
    return WordPiece(Tokenizer.from_str(learned.json()))


def _labels(header: "ExamplesHeader") -> str:
    if header.score:
        return "scores"
    if not header.labels:
        return "answers"
    shown = ", ".join(header.labels[:6]) + (" …" if len(header.labels) > 6 else "")
    return f"{len(header.labels)} labels ({shown})"
