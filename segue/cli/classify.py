"""`segue classify`: the labels or scores of texts, by a fine-tuned encoder."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segue.cli.machine import Device, Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.cli.texts import CutNotes, EncoderPath, TextFile, open_encoder, read_texts
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.checkpoint import TextEncoder
    from segue.text.wordpiece import Pieces, Text

EXAMPLE = "Example: segue classify runs/polarity < reviews.txt"


def classify(
    encoder: EncoderPath,
    file: TextFile = None,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Lines hold two texts; needed only for encoders of other libraries, which do not say so.",
        ),
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Labels for each text, the likeliest first.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per text instead of columns.")
    ] = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Classify texts, one per line, with an encoder that was fine-tuned for it.

    Columns: label and probability, of the --top likeliest labels; or the score, if it was trained on scores. If it was
    trained on pairs, every line holds two texts, separated by a tab. To make such an encoder: segue prepare-examples,
    then segue train classify-cpu or pairs-cpu --from ENCODER.
    """
    use(threads, device)
    from segue.infer.classify import check_head
    from segue.infer.embed import read_pieces

    opened = open_encoder(encoder, device)
    head = opened.model.task
    check_head(opened, "score" if head is not None and head.task == "score" else "text")
    assert head is not None
    notes = CutNotes(opened.reading.max_length)
    with Progress("texts") as progress:
        for texts in read_texts(file, pairs=pairs or head.pairs):
            pieces = read_pieces(opened, texts)
            notes.note(pieces)
            rows = _rows(opened, pieces, top)
            progress.update("classifying", notes.read, 0)
            progress.clear()
            for text, row in zip(texts, rows, strict=True):
                echo(_line(text, row, as_json))
    notes.end()
    if not notes.read:
        raise InputError("there are no texts to classify")


Row = float | dict[str, float]
"""A score, or the likeliest labels with their probabilities."""


def _rows(encoder: "TextEncoder", pieces: "list[Pieces]", top: int) -> list[Row]:
    from segue.infer.classify import classified, scored

    assert encoder.model.task is not None
    if encoder.model.task.task == "score":
        return [*scored(encoder, pieces)]
    return [dict(list(one.probabilities.items())[:top]) for one in classified(encoder, pieces)]


def _line(text: "Text", row: Row, as_json: bool) -> str:
    if isinstance(row, float):
        return json.dumps({"text": text, "score": row}, ensure_ascii=False) if as_json else f"{row:.4f}"
    if not as_json:
        return "\t".join(f"{label}\t{share:.4f}" for label, share in row.items())
    label, probability = next(iter(row.items()))
    facts: dict[str, Any] = {"text": text, "label": label, "probability": probability}
    if len(row) > 1:
        facts["top"] = row
    return json.dumps(facts, ensure_ascii=False)
