"""`segue similar`: the nearest sentences by an encoder's vectors."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.machine import Device, Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.cli.texts import CutNotes, EncoderPath, open_encoder, read_texts
from segue.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from segue.checkpoint import TextEncoder

EXAMPLE = 'Example: segue similar models/minilm sentences.txt --query "a man plays music" --top 5'


def similar(
    encoder: EncoderPath,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Texts to search, one per line; standard input by default."),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(
            help="A text whose nearest are wanted; may be given several times. Without one: the closest pairs."
        ),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file of queries, one per line.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Texts for each query, or pairs in all.")] = 10,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line instead of columns.")
    ] = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Find the texts nearest to a query, or the closest pairs of texts: paraphrases, duplicates.

    Columns: cosine, line number, text; of a pair both numbers and both texts; of several queries, the query first.
    """
    use(threads, device)
    from segue.infer.similar import closest_pairs, nearest

    opened = open_encoder(encoder, device)
    asked = list(query or ())
    if queries is not None:
        asked += [str(text) for block in read_texts(queries) for text in block]
    if any(not text.strip() for text in asked):
        raise InputError("a query is empty")
    texts, vectors = _vectors(opened, file)
    if not asked and len(texts) < 2:
        raise InputError("one text alone has no other to be near; give more lines, or a --query")
    if not asked:
        for near in closest_pairs(vectors, top):
            _show([near.first, near.second], near.cosine, texts, None, as_json)
        return
    for found in nearest(opened.embed(asked), vectors, top):
        for near in found:
            _show([near.second], near.cosine, texts, asked[near.first] if len(asked) > 1 else None, as_json)


def _vectors(encoder: "TextEncoder", file: Path | None) -> "tuple[list[str], Tensor]":
    import torch

    from segue.infer.embed import embed_pieces, read_pieces

    texts: list[str] = []
    blocks, notes = [], CutNotes(encoder.reading.max_length)
    with Progress("texts") as progress:
        for block in read_texts(file):
            pieces = read_pieces(encoder, block)
            notes.note(pieces)
            blocks.append(embed_pieces(encoder, pieces, encoder.reading, -1))
            texts += [str(text) for text in block]
            progress.update("embedding", len(texts), 0)
    notes.end()
    if not texts:
        raise InputError("there are no texts to search")
    return texts, torch.cat(blocks)


def _show(places: list[int], cosine: float, texts: list[str], query: str | None, as_json: bool) -> None:
    if as_json:
        row: dict[str, object] = {} if query is None else {"query": query}
        row |= {
            "cosine": cosine,
            "lines": [place + 1 for place in places],
            "texts": [texts[place] for place in places],
        }
        echo(json.dumps(row, ensure_ascii=False))
        return
    columns = [] if query is None else [query]
    columns += [f"{cosine:.4f}", *(str(place + 1) for place in places), *(texts[place] for place in places)]
    echo("\t".join(columns))
