"""`segue score`: the surprisal of each token, line or window of a text."""

import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.checksums import sum_ahead
from segue.cli.machine import Device, Int8, KVPrecision, Threads, placed, use
from segue.cli.terminal import echo
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.infer.surprise import Stretch

EXAMPLE = "Example: segue score runs/demo server.log --top 10"


class Per(StrEnum):
    """The unit that surprisal is summed over."""

    TOKEN = "token"  # noqa: S105
    LINE = "line"
    WINDOW = "window"


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a bundle.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text of any length; - for standard input.")],
    per: Annotated[Per, typer.Option(help="Score each token, line, or window of tokens.")] = Per.LINE,
    window: Annotated[int, typer.Option(help="Window length in tokens.")] = 64,
    top: Annotated[int, typer.Option(help="Print only this many, the most surprising; 0 for all.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of TSV.")
    ] = False,
    memory: Annotated[int | None, typer.Option(help="Memory length; by default the bundle's.")] = None,
    int8: Int8 = False,
    kv_cache: KVPrecision = "exact",
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Score how surprising each part of a text is, for example to find anomalies in a log.

    Columns: number, byte offset, bits per byte, excess, text. With a tokenizer that is not lossless (characters, words)
    bits are per token. Excess is the surprisal in standard deviations above the mean of this text, for a part of that
    length. Memory use is constant, whatever the length; without --top, lines are printed as they are read.
    """
    sum_ahead(run)
    use(threads, device)
    from segue.checkpoint import load
    from segue.infer.session import start_session
    from segue.infer.surprise import most_surprising, stretches, surprises

    session = start_session(placed(load(run), device), memory=memory, int8=int8, kv_cache=kv_cache)
    parts = stretches(surprises(session, _pieces(file)), per.value, window)
    for stretch in most_surprising(parts, top) if top else parts:
        echo(_line(stretch, session.tokenizer.lossless, as_json))


def _pieces(file: str) -> Iterator[bytes]:
    from segue.text.sources import cut_in_pieces, open_any

    if file == "-":
        yield from iter(sys.stdin.buffer.readline, b"")  # line by line: the input may be typed by hand
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
