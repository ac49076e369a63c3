"""`segue fill`: the words that a masked language model expects at each [MASK]."""

import json
from typing import Annotated

import typer

from segue.cli.machine import Device, Threads, use
from segue.cli.terminal import echo
from segue.cli.texts import EncoderPath, TextFile, open_encoder, read_texts
from segue.errors import InputError

EXAMPLE = 'Example: echo "the cat sat on the [MASK] ." | segue fill models/bert --top 3'


def fill(
    encoder: EncoderPath,
    file: TextFile = None,
    top: Annotated[int, typer.Option(min=1, help="Pieces for each mask.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per mask instead of columns.")
    ] = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Fill each [MASK] of each line with the pieces that the encoder's masked-LM head finds likeliest.

    Columns: line, mask, then each piece with its probability. Each mask of a line is filled without
    knowing what fills the others.
    """
    use(threads, device)
    from segue.infer.fill import fill as filled

    opened = open_encoder(encoder, device)
    line = 0
    for texts in read_texts(file):
        for place, masks in enumerate(filled(opened, [str(text) for text in texts], top)):
            line += 1
            if not masks:
                raise InputError(_without_mask(line, str(texts[place]), opened.reading.max_length))
            for number, guesses in enumerate(masks, start=1):
                if as_json:
                    pieces = {guess.piece: guess.probability for guess in guesses}
                    echo(json.dumps({"line": line, "mask": number, "pieces": pieces}, ensure_ascii=False))
                else:
                    shown = "\t".join(f"{guess.piece} {guess.probability:.4f}" for guess in guesses)
                    echo(f"{line}\t{number}\t{shown}")
    if not line:
        raise InputError("there are no texts to fill")


def _without_mask(line: int, text: str, longest: int) -> str:
    if "[MASK]" not in text:
        return f"line {line:,} has no [MASK] to fill"
    return f"line {line:,} has its [MASK] behind the {longest} tokens that the encoder reads; shorten it"
