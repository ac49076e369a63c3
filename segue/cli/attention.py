"""`segue attention`: a page that shows where each token of a text looks."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.machine import Threads, use
from segue.cli.terminal import echo
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.lab.attention_page import View

EXAMPLE = 'Example: segue attention runs/demo --text "for name in names: print(name)" -o attention.html'


def attention(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN|BUNDLE", help="A language model, a translator, or a BERT folder."),
    ],
    text: Annotated[str | None, typer.Option(help="What it reads.")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="The same, from a file.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page.")] = Path(
        "attention.html"
    ),
    segment: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens that look, the last of the text; by default half of it, 64 at most."
        ),
    ] = None,
    memory: Annotated[
        int | None, typer.Option(min=0, help="Tokens before them that lie in memory; by default 192 at most.")
    ] = None,
    threads: Threads = 0,
) -> None:
    """Write an interactive page, without a network: point at a token to see where it looks.

    Choose layer and head; of a Transformer-XL also each of the four terms of its scores. Arrows that cross the seam
    into memory have a colour of their own.
    """
    if (text is None) == (file is None):
        raise InputError("what should it read? give --text or --file, one of them")
    use(threads, "cpu")
    from segue.lab.attention_page import attention_page, write_page

    told = _read(file) if file is not None else os.fsencode(text or "")
    words, views = _views(run, told, segment, memory)
    page = attention_page("Where each token looks", words, views, first=len(views) - 1)
    write_page(output, page)
    echo(f"{output}: open it in a browser")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} could not be read: {error.strerror}") from None


def _views(run: Path, text: bytes, segment: int | None, memory: int | None) -> "tuple[str, list[View]]":
    from segue.checkpoint import load, load_translator, translates
    from segue.infer.translate import translate
    from segue.lab.attention_views import encoder_views, is_encoder, reader_views, translator_views

    said = text.decode(errors="replace")
    if is_encoder(run):
        return said, encoder_views(run, said)
    if translates(run):
        translator = load_translator(run)
        found = translate(translator, [text])[0][0].text
        return f"{said} → {found}", translator_views(translator, text, found)
    views = reader_views(load(run), text, segment=segment, memory=memory)
    held, looking = views[0].memory, len(views[0].queries)
    return f"the last {looking} tokens look at themselves and at {held} in memory", views
