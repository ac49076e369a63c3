"""`segue prepare`: tokenize text of any size to disk, once."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import SourceError

if TYPE_CHECKING:
    from segue.text.sources import Source

EXAMPLE = "Example: segue prepare stdlib -o data/stdlib"


class Tokenization(StrEnum):
    """Tokenizers."""

    BYTES = "bytes"
    CHARACTERS = "characters"
    WORDS = "words"
    BPE = "bpe"
    WORDPIECE = "wordpiece"
    FILE = "file"


class Documents(StrEnum):
    """What a document is."""

    FILES = "files"
    ARTICLES = "articles"


def prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A file (also .gz .xz .bz2 .zip), a folder, - for standard input, a .jsonl or .parquet file with "
            "--column, or a name: stdlib, enwik8, text8, wikitext-2, wikitext-103, ptb, lm1b.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The corpus folder to write.")
    ],
    tokenizer: Annotated[
        Tokenization | None,
        typer.Option(help="The tokenizer; by default words for a named set of words, bytes for all else."),
    ] = None,
    tokenizer_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An existing tokenizer.json, with --tokenizer file.")
    ] = None,
    size: Annotated[
        int, typer.Option("--size", "--vocab", help="Vocabulary size of BPE or WordPiece.")
    ] = 8192,
    cased: Annotated[bool, typer.Option("--cased", help="WordPiece keeps capitals and accents.")] = False,
    minimum: Annotated[
        int | None,
        typer.Option(
            help="Minimum count of a word or character to enter the vocabulary; by default 1, lm1b 3."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A local copy of a named data set: its file, folder or archive."),
    ] = None,
    documents: Annotated[
        Documents,
        typer.Option(
            help="What a document is: a file or row, or an article of WikiText, under ' = Title = '."
        ),
    ] = Documents.FILES,
    glob: Annotated[str, typer.Option(help="The files of a folder to read.")] = "**/*.txt",
    column: Annotated[
        str | None, typer.Option(help="The text field of a row, for .jsonl, .parquet or a Hub data set.")
    ] = None,
    valid: Annotated[
        float, typer.Option(help="Share of the text held out for validation, before --test.")
    ] = 0.05,
    test: Annotated[float, typer.Option(help="Share of the text held out for testing, from the end.")] = 0.05,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="enwik8 as in the authors' code: without newlines, 204 symbols."),
    ] = False,
) -> None:
    """Tokenize text into a corpus: token ids on disk, with splits and document boundaries.

    Every file or row is a document. Published data sets have their published splits and vocabularies; of other text the
    end is held out. Memory use is constant, whatever the size.
    """
    from segue.text.articles import with_articles
    from segue.text.prepare import PrepareConfig
    from segue.text.prepare import prepare as prepare_corpus

    text = _source(source, file, glob, column)
    if documents is Documents.ARTICLES:
        text = with_articles(text)
    chosen = tokenizer or (Tokenization.WORDS if text.words else Tokenization.BYTES)
    config = PrepareConfig(
        tokenizer="file" if tokenizer_file is not None else chosen.value,
        tokenizer_file=tokenizer_file,
        minimum=(text.words.minimum if text.words else 1) if minimum is None else minimum,
        size=size,
        cased=cased,
        valid=valid,
        test=test,
        newlines=not reference,
    )
    with Progress("bytes") as progress:
        header = prepare_corpus(text, output, config, progress.update)
    for name, split in header.splits.items():
        echo(f"{name:<6} {split.tokens:>13,} tokens {split.bytes:>13,} bytes {split.documents:>9,} documents")
    for name, share in (("valid", valid), ("test", test)):
        if share and name not in header.splits:
            tell(
                f"note: there is no {name} split: the text is too short, or no document begins late enough; "
                f"try a larger --{name}"
            )
    if text.words and chosen is Tokenization.WORDS and text.words.vocab != header.vocab:
        tell(f"note: {text.name} was published with {text.words.vocab:,} symbols; here are {header.vocab:,}")
    preset = "bert-cpu" if chosen is Tokenization.WORDPIECE else "stdlib-demo"
    change = "" if header.vocab == 256 or preset == "bert-cpu" else f" --set model.vocab={header.vocab}"
    echo(
        f"{output}: {header.vocab:,} symbols, {header.width}. "
        f"Next: segue train {preset} --data {output}{change}"
    )


def _source(name: str, copy: Path | None, glob: str, column: str | None) -> "Source":
    from segue.text import sources
    from segue.text.published import PUBLISHED, published

    path = Path(name)
    if name == "stdlib":
        return sources.standard_library()
    if name in PUBLISHED:
        return published(name, copy, tell)
    if name == "-":
        return sources.from_pipe()
    if column is not None:
        jsonl = ".jsonl" in path.suffixes and path.exists()
        return sources.from_jsonl(path, column) if jsonl else sources.from_dataset(name, column)
    if sources.has_rows(path) and path.is_file():
        raise SourceError(f"{name} has rows; name their text field, for example: --column text")
    if path.is_dir():
        return sources.from_folder(path, glob)
    if path.is_file():
        return sources.from_files(name, [path])
    raise SourceError(
        f"there is no file, folder or data set '{name}'; names are stdlib, {', '.join(PUBLISHED)}"
    )
