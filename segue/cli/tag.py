"""`segue tag`: the tags of words, such as names of people and places, by a fine-tuned encoder."""

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.machine import Device, Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.cli.texts import EncoderPath, TextFile, open_encoder, read_texts
from segue.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLE = 'Example: echo "Ada Lovelace lived in London ." | segue tag runs/entities'

WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def tag(
    encoder: EncoderPath,
    file: TextFile = None,
    split_punctuation: Annotated[
        bool,
        typer.Option(
            "--split-punctuation",
            help="Punctuation marks are words of their own; by default words are what stands between spaces.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per sentence, with its entities, instead of columns."),
    ] = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Tag the words of sentences, one sentence per line, with an encoder that was fine-tuned for it.

    CoNLL columns: word and tag, a line for each word, an empty line behind each sentence. Sentences that are longer
    than the encoder reads are read in overlapping windows. To make such an encoder: segue prepare-examples --task tag,
    then segue train tag-cpu --from ENCODER.
    """
    use(threads, device)
    from segue.infer.classify import check_head
    from segue.infer.tag import tag as tagged

    opened = open_encoder(encoder, device)
    check_head(opened, "tags")
    done = 0
    with Progress("sentences") as progress:
        for texts in read_texts(file):
            sentences = [
                WORD_OR_MARK.findall(str(text)) if split_punctuation else str(text).split() for text in texts
            ]
            tags = tagged(opened, sentences)
            done += len(texts)
            progress.update("tagging", done, 0)
            progress.clear()
            for words, own in zip(sentences, tags, strict=True):
                echo(_row(words, own) if as_json else _columns(words, own))
    if not done:
        raise InputError("there are no sentences to tag")


def _columns(words: "Sequence[str]", tags: "Sequence[str]") -> str:
    return "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True))


def _row(words: "Sequence[str]", tags: "Sequence[str]") -> str:
    from segue.infer.metrics import are_entities, entities

    row: dict[str, object] = {"words": words, "tags": tags}
    if are_entities(["O", *tags]):
        row["entities"] = [
            {
                "kind": one.kind,
                "text": " ".join(words[one.first : one.last + 1]),
                "first": one.first,
                "last": one.last,
            }
            for one in entities(tags)
        ]
    return json.dumps(row, ensure_ascii=False)
