"""`segue embed`: vectors of texts or of their tokens, by an encoder."""

import io
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segue.cli.machine import Device, Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell, write_bytes
from segue.cli.texts import CutNotes, EncoderPath, TextFile, open_encoder, read_texts
from segue.errors import InputError
from segue.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from segue.checkpoint import TextEncoder
    from segue.config import EncoderReading
    from segue.text.wordpiece import Pieces, Text

EXAMPLE = "Example: segue embed models/minilm < sentences.txt > vectors.npy"


class Pooling(StrEnum):
    """How the vector of a text is made of its tokens' states."""

    CLS = "cls"
    MEAN = "mean"


Layer = Annotated[int, typer.Option(help="The layer: 0 is the embedding, 1 the first, -1 the last.")]


def embed(
    encoder: EncoderPath,
    file: TextFile = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to this file, not to standard output."),
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One JSON object per text instead of one NumPy array (.npy).")
    ] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="A vector for each token, with --jsonl: contextual embeddings.")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Every line is a pair of texts, separated by a tab.")
    ] = False,
    pooling: Annotated[
        Pooling | None,
        typer.Option(
            help="The vector of a text: the first token's, or the mean; by default the encoder's own."
        ),
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="Vectors of length 1; by default as the encoder's own.")
    ] = None,
    layer: Layer = -1,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of a text at most; by default the encoder's own.")
    ] = None,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Embed texts, one per line: an array of float32 with one row for each line, or JSON lines.

    Texts are read in batches by length, without padding; what is longer than the encoder reads is cut, with a note.
    """
    if tokens and not jsonl:
        raise InputError("--tokens gives texts of different lengths, which are no array; add --jsonl")
    if output is None and not jsonl and sys.stdout.isatty():
        raise InputError("the array is binary; write it to a file with > or -o, or add --jsonl")
    use(threads, device)
    from segue.infer.embed import embed_pieces, embed_tokens, read_pieces

    opened = open_encoder(encoder, device)
    reading = _reading(opened, pooling, normalize, max_length)
    notes, kept = CutNotes(reading.max_length), []
    lines = io.StringIO()
    with Progress("texts") as progress:
        for texts in read_texts(file, pairs=pairs):
            pieces = read_pieces(opened, texts, reading.max_length)
            notes.note(pieces)
            vectors: Sequence[Tensor] | Tensor = (
                embed_tokens(opened, pieces, layer)
                if tokens
                else embed_pieces(opened, pieces, reading, layer)
            )
            progress.update("embedding", notes.read, 0)
            if not jsonl:
                kept.append(vectors)
                continue
            for text, one, vector in zip(texts, pieces, vectors, strict=True):
                row = json.dumps(_row(opened, text, one, vector, tokens), ensure_ascii=False)
                echo(row) if output is None else lines.write(f"{row}\n")
    notes.end()
    if not notes.read:
        raise InputError("there are no texts to embed")
    _write(output, lines.getvalue().encode() if jsonl else _array(kept), jsonl)


def _reading(
    encoder: "TextEncoder", pooling: Pooling | None, normalize: bool | None, max_length: int | None
) -> "EncoderReading":
    """The encoder's reading with what was asked for."""
    asked: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "max_length": max_length}
    given = {name: value for name, value in asked.items() if value is not None}
    return type(encoder.reading)(**{**encoder.reading.model_dump(), **given})


def _row(
    encoder: "TextEncoder", text: "Text", pieces: "Pieces", vector: "Tensor", tokens: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"text": text}
    if tokens:
        return row | {"tokens": encoder.tokenizer.tokens(pieces.ids), "vectors": vector.tolist()}
    return row | {"vector": vector.tolist()}


def _array(blocks: "list[Any]") -> bytes:
    import numpy as np
    import torch

    content = io.BytesIO()
    np.save(content, torch.cat(blocks).float().cpu().numpy())
    return content.getvalue()


def _write(output: Path | None, content: bytes, jsonl: bool) -> None:
    if output is not None:
        write_atomically(output, content, InputError)
        tell(f"{output}: written")
    elif not jsonl:
        write_bytes(content)
