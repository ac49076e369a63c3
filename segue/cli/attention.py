"""`segue attention`: an interactive page of attention weights."""

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
        typer.Argument(metavar="RUN|BUNDLE", help="A language model, a translation model, or a BERT folder."),
    ],
    text: Annotated[str | None, typer.Option(help="The text to read.")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with the text to read.")] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The HTML page to write.")
    ] = Path("attention.html"),
    segment: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Segment length: queries, the last tokens of the text; by default half of it, at most 64.",
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(min=0, help="Memory length: tokens before the segment; by default at most 192."),
    ] = None,
    threads: Threads = 0,
) -> None:
    """Write an interactive HTML page of attention weights: point at a token to see what it attends to.

    Choose the layer and the head; for a Transformer-XL also each of the four terms of the attention score. Arrows into
    memory have their own colour. For a Universal Transformer there is a view of each step, and every token tells how
    many steps it was thought about. The page needs no network.
    """
    if (text is None) == (file is None):
        raise InputError("give the text to read, with either --text or --file")
    use(threads, "cpu")
    from segue.lab.attention_page import attention_page, write_page

    content = _read(file) if file is not None else os.fsencode(text or "")
    subtitle, views = _views(run, content, segment, memory)
    page = attention_page("Attention weights", subtitle, views, first=len(views) - 1)
    write_page(output, page)
    echo(f"{output}: open it in a browser")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} could not be read: {error.strerror}") from None


def _views(run: Path, text: bytes, segment: int | None, memory: int | None) -> "tuple[str, list[View]]":
    from segue.checkpoint import load, load_translator, task_of
    from segue.infer.translate import translate
    from segue.interop.encoders import is_encoder_folder, load_encoder
    from segue.lab.attention_views import encoder_views, reader_views, translator_views

    shown = text.decode(errors="replace")
    task = "encoding" if is_encoder_folder(run) else task_of(run)
    if task == "encoding":
        return shown, encoder_views(load_encoder(run), shown)
    if task == "translation":
        translator = load_translator(run)
        translation = translate(translator, [text])[0][0].text
        return f"{shown} → {translation}", translator_views(translator, text, translation)
    views = reader_views(load(run), text, segment=segment, memory=memory)
    queries, remembered = len(views[0].queries), views[0].memory
    return f"the last {queries} tokens attend to each other and to {remembered} tokens in memory", views
