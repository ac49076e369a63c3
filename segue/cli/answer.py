"""`segue answer`: the span of a text that answers a question, by a fine-tuned encoder."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.machine import Device, Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.cli.texts import EncoderPath, open_encoder
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.infer.answer import Answered

EXAMPLE = 'Example: segue answer runs/squad --question "Who wrote Emma?" --context austen.txt --top 3'


def answer(
    encoder: EncoderPath,
    question: Annotated[
        list[str] | None, typer.Option(help="What is asked; may be given several times.")
    ] = None,
    context: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The text with the answer; standard input by default.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Spans for each question, the best first.")] = 1,
    threshold: Annotated[
        float | None,
        typer.Option(
            help='"No answer" if the best span\'s score is not above this; segue eval finds the best value. By default '
            "0 for an encoder that has learned questions without answers; another always answers."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per question instead of columns.")
    ] = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Answer questions with spans of a text, by an encoder that was fine-tuned for it.

    Columns: probability, score above "no answer", first character and end in the text, span; of several questions, the
    question first. A text of any length is read in overlapping windows. To make such an encoder: segue prepare-examples
    --task answer, then segue train answer-cpu --from ENCODER.
    """
    if not question:
        raise InputError('a question is needed: --question "Who …?"')
    use(threads, device)
    from segue.infer.answer import answer as answered

    opened = open_encoder(encoder, device)
    text = _read(context)
    asked = [(one, text) for one in question]
    with Progress("windows") as progress:
        answers = answered(opened, asked, top=top, threshold=threshold, report=progress.update)
    for one, found in zip(question, answers, strict=True):
        _show(one if len(question) > 1 else None, one, found, as_json)


def _read(context: Path | None) -> str:
    """The context, which is UTF-8."""
    if context is not None and not context.is_file():
        raise InputError(f"there is no file {context}")
    content = sys.stdin.buffer.read() if context is None else context.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"line {line:,} of the context is not UTF-8: {error.reason}") from None
    if not text.strip():
        raise InputError("the context is empty")
    return text


def _show(shown: str | None, question: str, answered: "Answered", as_json: bool) -> None:
    if as_json:
        facts = {
            "question": question,
            "answer": answered.text or None,
            "no_answer_probability": answered.null_probability,
            "spans": [span._asdict() for span in answered.spans],
        }
        echo(json.dumps(facts, ensure_ascii=False))
        return
    lead = "" if shown is None else f"{shown}\t"
    if answered.no_answer:
        echo(f"{lead}no answer")
        return
    for span in answered.spans:
        words = " ".join(span.text.split())
        echo(f"{lead}{span.probability:.4f}\t{span.score:.2f}\t{span.start}\t{span.end}\t{words}")
