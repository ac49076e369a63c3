"""`segue generate`: sample text from a language model."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.checksums import sum_ahead
from segue.cli.machine import Device, Int8, KVPrecision, Threads, placed, use
from segue.cli.terminal import echo
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.infer.session import Session

EXAMPLE = 'Example: segue generate runs/demo --prompt "def read(self" --tokens 400 --temperature 0.8'


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a bundle.")],
    prompt: Annotated[str | None, typer.Option(help="The text to continue.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the prompt, of any length.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=0, help="Tokens to generate; 0 for no limit, until Ctrl-C.")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(help="Sampling temperature; 0 is greedy, 1 samples from the model's distribution."),
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k likeliest tokens; 0 for all.")] = 0,
    top_p: Annotated[
        float,
        typer.Option(help="Nucleus sampling: sample from the likeliest tokens with this total probability."),
    ] = 1.0,
    samples: Annotated[
        int, typer.Option(min=1, help="Samples generated in parallel; each has the next seed.")
    ] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory length; by default the bundle's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same text.")] = None,
    int8: Int8 = False,
    kv_cache: KVPrecision = "exact",
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Continue a prompt with sampled text, streamed to the terminal. Memory use is constant, whatever the length."""
    sum_ahead(run)
    use(threads, device)
    from segue.checkpoint import load
    from segue.infer.sample import Sampling
    from segue.infer.session import generate_samples, start_session

    session = start_session(placed(load(run), device), memory=memory, int8=int8, kv_cache=kv_cache)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    text = _fed(session, _prompt(prompt, prompt_file))
    if samples > 1:
        if not tokens:
            raise InputError("several samples need a number of tokens; use --tokens 1 or more")
        texts = generate_samples(session, samples, tokens, sampling, seed, stop=stop or ())
        for number, sample in enumerate(texts, start=1):
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
    """Read the prompt, or the tokens that begin a text if there is none; returns the text to show."""
    from segue.text.tokenizer import start_ids

    if prompt:
        session.feed(prompt)
        return prompt.decode(errors="replace")
    ids = start_ids(session.tokenizer)
    session.read(ids)
    return "\n" if session.tokenizer.decode(ids) == b"\n" else ""


def _prompt(prompt: str | None, file: Path | None) -> bytes:
    if prompt is not None and file is not None:
        raise InputError("--prompt and --prompt-file exclude each other; use one")
    if file is None:
        return os.fsencode(prompt or "")  # bytes that are not UTF-8 stay as they were typed
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} could not be read: {error.strerror}") from None
