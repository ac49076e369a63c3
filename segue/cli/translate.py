"""`segue translate`: translate sentences line by line, by beam search."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.checksums import sum_ahead
from segue.cli.eval_translator import Metric
from segue.cli.machine import Device, Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segue.checkpoint import Translator

UNFAMILIAR = 0.7
"""Tokens per byte: above this, a text is hardly in the model's source language, and a warning is printed."""

EXAMPLE = "Example: segue translate runs/multi30k --reference test.de < test.en > out.de"


def translate(
    run: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="A translation model.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Sentences, one per line; standard input by default."),
    ] = None,
    beam_width: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy search.")] = None,
    penalty: Annotated[
        float | None,
        typer.Option(help="Length penalty: larger values favour longer translations; 0 is none."),
    ] = None,
    longest: Annotated[
        int | None, typer.Option(help="Tokens of a source and of a translation at most.")
    ] = None,
    best: Annotated[
        int, typer.Option(help="Translations per sentence (n-best); printed with scores if more than one.")
    ] = 1,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Reference translations: prints BLEU and chrF, or ROUGE."),
    ] = None,
    metric: Annotated[
        Metric, typer.Option(help="With --reference: bleu (BLEU and chrF), or rouge (ROUGE-1, -2, -L).")
    ] = "bleu",
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an HTML page of the attention weights of the first line."),
    ] = None,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Translate a file or a pipe of any length line by line; an empty line stays empty."""
    sum_ahead(run)
    use(threads, device)
    from segue.checkpoint import load_translator
    from segue.infer.judge import check_metric
    from segue.infer.translate import strangeness, translate_stream

    if reference is not None:
        check_metric(metric)

    translator = load_translator(run)
    translator.model.to(device)
    changes = {"beam_width": beam_width, "penalty": penalty, "longest": longest}
    given = {name: value for name, value in changes.items() if value is not None}
    settings = type(translator.translating)(**{**translator.translating.model_dump(), **given})
    done, truncated, first = 0, 0, ""
    translations: list[str] = []  # kept only for a reference: a pipe may never end
    sample: list[tuple[int, bytes]] = []
    with Progress("sentences") as progress:
        lines = _sampled(_lines(file), sample)
        for texts in translate_stream(translator, lines, translating=settings, best=best):
            done += 1
            progress.update("translating", done, 0)
            truncated += texts[0].cut
            if reference is not None:
                translations.append(texts[0].text)
            if sample and sample[0][0] == done - 1:
                first = texts[0].text
            for one in texts:
                echo(one.text if best == 1 else f"{done}\t{one.score:.4f}\t{one.text}")
    if truncated:
        tell(f"warning: {truncated:,} lines had more than {settings.longest} tokens and were truncated")
    if strangeness(translator, [line for _, line in sample]) > UNFAMILIAR:
        tell("warning: hardly any word of the input is known; is it in the model's source language?")
    if attention is not None:
        _write_attention(translator, sample, first, attention)
    if reference is not None:
        _compare(translations, reference, metric)


def _sampled(lines: "Iterator[bytes]", sample: list[tuple[int, bytes]]) -> "Iterator[bytes]":
    """The same lines; the first hundred that are not empty are added to `sample`, with their numbers."""
    for number, line in enumerate(lines):
        if line.strip() and len(sample) < 100:
            sample.append((number, line.strip()))
        yield line


def _write_attention(
    translator: "Translator", sample: list[tuple[int, bytes]], text: str, path: Path
) -> None:
    from segue.lab.attention_page import attention_page, write_page
    from segue.lab.attention_views import translator_views

    if not sample:
        raise InputError("there is nothing to show: every line was empty")
    _, line = sample[0]
    views = translator_views(translator, line, text)
    subtitle = f"{line.decode(errors='replace')} → {text}"
    write_page(path, attention_page("Attention weights", subtitle, views, first=len(views) - 1))
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


def _compare(translations: list[str], reference: Path, metric: Metric) -> None:
    """Print the figures against the reference; BLEU and chrF with case and without."""
    from segue.infer.judge import measured

    references = [line.decode(errors="replace").strip() for line in _lines(reference)]
    if len(references) != len(translations):
        raise InputError(
            f"{reference} has {len(references):,} lines, and {len(translations):,} lines were translated"
        )
    for lower in (False, True) if metric == "bleu" else (True,):
        for name, (score, signature) in measured(metric, translations, references, lower=lower).items():
            tell(f"{name} {score:.1f}  {signature}")
