"""`segue translate`: sentences in, sentences out, line by line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.machine import Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segue.checkpoint import Translator

STRANGE = 0.7
"""Tokens for each byte, from which on a text is told to be strange."""

EXAMPLE = "Example: segue translate runs/multi30k --reference test.de < test.en > out.de"


def translate(
    run: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="A translator.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Sentences, one a line; standard input by default."),
    ] = None,
    beam_width: Annotated[int | None, typer.Option(help="1 is greedy search.")] = None,
    penalty: Annotated[float | None, typer.Option(help="Of short translations; 0 is none.")] = None,
    best: Annotated[
        int, typer.Option(help="Translations of each sentence, with scores if more than one.")
    ] = 1,
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The right translations: tells BLEU and chrF of ours.")
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page that shows where each token of the first line looked."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cpu",
    threads: Threads = 0,
) -> None:
    """Translate line by line, from a file or a pipe of any length; an empty line stays empty."""
    use(threads, device)
    from segue.checkpoint import load_translator
    from segue.infer.translate import strangeness, translate_stream

    translator = load_translator(run)
    translator.model.to(device)
    changes = {"beam_width": beam_width, "penalty": penalty}
    told = {name: value for name, value in changes.items() if value is not None}
    how = type(translator.translating)(**{**translator.translating.model_dump(), **told})
    done, cut, first = 0, 0, ""
    every: list[str] = []  # for a reference alone: a pipe may never end
    some: list[tuple[int, bytes]] = []
    with Progress("sentences") as progress:
        for texts in translate_stream(translator, _noted(_lines(file), some), translating=how, best=best):
            done += 1
            progress.update("translating", done, 0)
            cut += texts[0].cut
            if reference is not None:
                every.append(texts[0].text)
            if some and some[0][0] == done - 1:
                first = texts[0].text
            for one in texts:
                echo(one.text if best == 1 else f"{done}\t{one.score:.4f}\t{one.text}")
    if cut:
        tell(f"warning: {cut:,} lines had more than {how.longest} tokens; their ends were not read")
    if strangeness(translator, [line for _, line in some]) > STRANGE:
        tell("warning: hardly any word of this is known; is it the language that the model reads?")
    if attention is not None:
        _show(translator, some, first, attention)
    if reference is not None:
        _tell(every, reference)


def _noted(lines: "Iterator[bytes]", some: list[tuple[int, bytes]]) -> "Iterator[bytes]":
    """The same lines; the first hundred that are not empty are kept, with their numbers."""
    for number, line in enumerate(lines):
        if line.strip() and len(some) < 100:
            some.append((number, line.strip()))
        yield line


def _show(translator: "Translator", some: list[tuple[int, bytes]], text: str, path: Path) -> None:
    from segue.lab.attention_page import attention_page, write_page
    from segue.lab.attention_views import translator_views

    if not some:
        raise InputError("there is nothing to show: every line was empty")
    _, line = some[0]
    views = translator_views(translator, line, text)
    told = f"{line.decode(errors='replace')} → {text}"
    write_page(path, attention_page("Where each token looks", told, views, first=len(views) - 1))
    tell(f"{path}: open it in a browser")


def _lines(file: Path | None) -> "Iterator[bytes]":
    from segue.text.sources import open_any

    if file is None:
        yield from sys.stdin.buffer
        return
    if not file.is_file():
        raise InputError(f"there is no file {file}")
    with open_any(file) as opened:
        yield from opened


def _tell(found: list[str], reference: Path) -> None:
    from segue.infer.judge import bleu, chrf

    wanted = [line.decode(errors="replace").strip() for line in _lines(reference)]
    if len(wanted) != len(found):
        raise InputError(f"{reference} has {len(wanted):,} lines and {len(found):,} were translated")
    for lower in (False, True):
        for name, measure in (("BLEU", bleu), ("chrF", chrf)):
            score, signature = measure(found, wanted, lower=lower)
            tell(f"{name} {score:.1f}  {signature}")
