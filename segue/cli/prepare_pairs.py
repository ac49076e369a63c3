"""`segue prepare-pairs`: tokenize sentence pairs to disk, for translation models."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import SourceError

if TYPE_CHECKING:
    from segue.text.pairs import Pairs

EXAMPLE = "Example: segue prepare-pairs --train train.en train.de --valid val.en val.de -o data/en-de"

BYTE_VOCABULARY = 257
"""The smallest BPE vocabulary size: hardly more than the 256 bytes."""

Files = tuple[Path, Path]


class PairTokenization(StrEnum):
    """Tokenizers of sentence pairs."""

    BPE = "bpe"
    WORDS = "words"


def prepare_pairs(
    train: Annotated[
        Files,
        typer.Option(metavar="SOURCE TARGET", help="Two aligned files for training; also .gz .xz .bz2 .zip."),
    ] = (Path(), Path()),
    valid: Annotated[
        Files, typer.Option(metavar="SOURCE TARGET", help="Two aligned files for validation.")
    ] = (Path(), Path()),
    test: Annotated[Files, typer.Option(metavar="SOURCE TARGET", help="Two aligned files for testing.")] = (
        Path(),
        Path(),
    ),
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of --train: one .tsv file, or .jsonl with --columns."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of files: a generated task: dates, copy, reverse, parity or addition.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Training pairs of a generated task.")] = 100_000,
    columns: Annotated[
        tuple[str, str], typer.Option(metavar="SOURCE TARGET", help="The two text fields of a .jsonl row.")
    ] = ("source", "target"),
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")
    ] = Path("data/pairs"),
    tokenizer: Annotated[
        PairTokenization,
        typer.Option(help="bpe, or words: words and punctuation marks, rare ones unknown; for word vectors."),
    ] = PairTokenization.BPE,
    size: Annotated[
        int | None,
        typer.Option(help="Vocabulary size; by default 10,000, and bytes for a generated task with bpe."),
    ] = None,
    minimum: Annotated[int, typer.Option(help="Minimum count of a word to enter the vocabulary.")] = 1,
    separate: Annotated[
        bool, typer.Option("--separate", help="Separate vocabularies for source and target.")
    ] = False,
    lower: Annotated[bool, typer.Option("--lower", help="Convert all text to lower case.")] = False,
    longest: Annotated[
        int, typer.Option(help="The most tokens of a sentence; longer ones are truncated, with a note.")
    ] = 256,
) -> None:
    """Tokenize sentence pairs with byte-level BPE or into words, and write the token ids to disk.

    Without --valid, the last 5 % of the pairs (at most 2,000) are held out for validation.
    """
    from segue.text.pairs import PairsConfig, held_out
    from segue.text.pairs import prepare_pairs as prepare

    if task is not None:
        from segue.text.tasks import task as task_of

        parts = task_of(task, count)
    else:
        parts = _parts(train, valid, test, pairs, columns)
    if "valid" not in parts:
        parts = held_out(parts)
    as_bytes = task is not None and tokenizer is PairTokenization.BPE
    config = PairsConfig(
        tokenizer=tokenizer.value,
        size=size or (BYTE_VOCABULARY if as_bytes else 10_000),
        minimum=minimum,
        joint=not separate,
        lower=lower,
        longest=longest,
    )
    with Progress("pairs") as progress:
        header = prepare(parts, output, config, progress.update)
    for name, split in header.splits.items():
        echo(f"{name:<6} {split.pairs:>11,} pairs {split.tokens:>13,} tokens")
        if split.empty:
            tell(f"note: {split.empty:,} pairs of {name} had an empty side and were left out")
        if split.cut:
            tell(
                f"note: {split.cut:,} sentences of {name} have more than {longest} tokens and are truncated in training"
            )
    preset = "dates-cpu" if task else "multi30k-cpu"
    echo(f"{output}: {header.vocab:,} symbols. Next: segue train {preset} --data {output}")


def _parts(
    train: Files, valid: Files, test: Files, single: Path | None, columns: tuple[str, str]
) -> "dict[str, Pairs]":
    from segue.text.pairs import from_rows, from_tabs, from_two_files

    parts: dict[str, Pairs] = {}
    nothing = (Path(), Path())
    if single is not None:
        rows = ".jsonl" in single.suffixes
        parts["train"] = from_rows(single, *columns) if rows else from_tabs(single)
    elif train != nothing:
        parts["train"] = from_two_files(*train)
    else:
        raise SourceError(
            "give the pairs: --train SOURCE TARGET for two files, --pairs FILE for one, --task NAME to generate them"
        )
    for name, files in (("valid", valid), ("test", test)):
        if files != nothing:
            parts[name] = from_two_files(*files)
    return parts
