"""`segue score`: surprise as a text is read."""

import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.machine import Device, Int8, Threads, placed, use
from segue.cli.terminal import echo
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.infer.surprise import Stretch

EXAMPLE = "Example: segue score runs/demo server.log --top 10"


class Per(StrEnum):
    """What surprise is summed over."""

    TOKEN = "token"  # noqa: S105
    LINE = "line"
    WINDOW = "window"


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a bundle.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text of any length; - for standard input.")],
    per: Annotated[Per, typer.Option(help="Surprise of each token, line, or window of tokens.")] = Per.LINE,
    window: Annotated[int, typer.Option(help="Tokens of a window.")] = 64,
    top: Annotated[int, typer.Option(help="Print only so many, the most surprising; 0 for all.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line instead of TSV.")] = False,
    memory: Annotated[
        int | None, typer.Option(help="States remembered; by default as the bundle reads.")
    ] = None,
    int8: Int8 = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Read a text and say how surprising each part is. Columns: number, byte offset, bits per byte, excess, text.

    Bits are per token, not per byte, where the tokenizer may lose some of a text: characters and words do.
    Excess counts standard deviations above what is usual in this text for a stretch of that length: an anomaly finder
    for logs. Memory stays constant, whatever the length; without --top, lines appear as they are read.
    """
    use(threads, device)
    from segue.checkpoint import load
    from segue.infer.session import start_session
    from segue.infer.surprise import most_surprising, stretches, surprises

    session = start_session(placed(load(run), device), memory=memory, int8=int8)
    found = stretches(surprises(session, _pieces(file)), per.value, window)
    for stretch in most_surprising(found, top) if top else found:
        echo(_line(stretch, session.tokenizer.lossless, as_json))


def _pieces(file: str) -> Iterator[bytes]:
    from segue.text.sources import cut_in_pieces, open_any

    if file == "-":
        yield from iter(sys.stdin.buffer.readline, b"")  # a line at a time: somebody may be typing it
        return
    if not Path(file).is_file():
        raise InputError(f"there is no file {file}")
    with open_any(Path(file)) as opened:
        yield from cut_in_pieces(opened)


def _line(stretch: "Stretch", lossless: bool, as_json: bool) -> str:
    text = stretch.text.decode(errors="replace")
    bits = stretch.bits_per_byte if lossless else stretch.bits_per_token
    if as_json:
        facts = {
            "number": stretch.number,
            "offset": stretch.offset,
            "tokens": stretch.tokens,
            "nats": stretch.nats,
            "bits_per_byte": bits if lossless else None,
            "bits_per_token": stretch.bits_per_token,
        }
        return json.dumps({**facts, "excess": stretch.excess, "text": text})
    shown = text.rstrip("\n").replace("\t", " ").replace("\n", " ")
    return f"{stretch.number}\t{stretch.offset}\t{bits:.3f}\t{stretch.excess:+.2f}\t{shown}"
