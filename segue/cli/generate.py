"""`segue generate`: a model goes on speaking."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.machine import Device, Int8, Threads, placed, use
from segue.cli.terminal import echo
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.infer.session import Session

EXAMPLE = 'Example: segue generate runs/demo --prompt "def read(self" --tokens 400 --temperature 0.8'


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a bundle.")],
    prompt: Annotated[str | None, typer.Option(help="What to go on from.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same from a file, of any length.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=0, help="How many; 0 for ever, until Ctrl-C.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 is greedy; 1 is as it was trained.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose within this share of the probability.")] = 1.0,
    samples: Annotated[
        int, typer.Option(min=1, help="Several at once; each but the first with the next seed.")
    ] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")] = None,
    memory: Annotated[
        int | None, typer.Option(help="States remembered; by default as the bundle reads.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For the same text again.")] = None,
    int8: Int8 = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Go on from a prompt, streaming to the terminal, at constant memory however long."""
    use(threads, device)
    from segue.checkpoint import load
    from segue.infer.sample import Sampling
    from segue.infer.session import generate_samples, start_session

    session = start_session(placed(load(run), device), memory=memory, int8=int8)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    text = _fed(session, _prompt(prompt, prompt_file))
    if samples > 1:
        if not tokens:
            raise InputError("several samples at once want a number of tokens; give --tokens 1 or more")
        found = generate_samples(session, samples, tokens, sampling, seed, stop=stop or ())
        for number, sample in enumerate(found, start=1):
            echo(f"--- {number}\n{text}{sample}")
        return
    echo(text, end="")
    try:
        for piece in session.stream(tokens or None, sampling, seed=seed, stop=stop or ()):
            echo(piece, end="")
    except KeyboardInterrupt:
        pass
    echo("")


def _fed(session: "Session", prompt: bytes) -> str:
    """Read the prompt, or what a text begins with where there is none; the text to show of it."""
    from segue.text.tokenizer import start_ids

    if prompt:
        session.feed(prompt)
        return prompt.decode(errors="replace")
    ids = start_ids(session.tokenizer)
    session.read(ids)
    return "\n" if session.tokenizer.decode(ids) == b"\n" else ""


def _prompt(prompt: str | None, file: Path | None) -> bytes:
    if prompt is not None and file is not None:
        raise InputError("--prompt and --prompt-file say two things; give one")
    if file is None:
        return os.fsencode(prompt or "")  # what is no UTF-8 comes as it was typed
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} could not be read: {error.strerror}") from None
