"""`segue lm-eval`: the tasks of lm-eval, or your own in its format."""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.machine import Device, Threads, placed, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.errors import InputError

EXAMPLE = "Example: segue lm-eval runs/demo --tasks my_texts --include-path tasks/"


def lm_eval(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a bundle of a language model.")],
    tasks: Annotated[str, typer.Option(help="Names of tasks, with commas between them.")],
    include_path: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Tasks of your own: YAML files. They may name code: read them."),
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(help="Examples before each question; by default the task's.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many documents of each task.")] = None,
    segment: Annotated[int | None, typer.Option(help="Segment length in tokens.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory length.")] = None,
    clamp: Annotated[int | None, typer.Option(help="Clamp length; 0 for no clamp.")] = None,
    span: Annotated[int | None, typer.Option(help="Attention span; 0 for all.")] = None,
    seed: Annotated[int, typer.Option(help="Of tasks that sample.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Evaluate a language model on tasks of lm-eval, EleutherAI's harness (the extra `eval`).

    Texts of any length are read as one stream, every token once with the memory before it, as `segue eval` reads them;
    the choices of a question share the memory of its context. Tasks whose data are not on this machine are fetched by
    lm-eval from the Hugging Face hub.
    """
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise InputError("--tasks names no task")
    if include_path is not None and not include_path.is_dir():
        raise InputError(f"--include-path {include_path} is no folder")
    if limit is not None and limit < 1:
        raise InputError(f"--limit should be 1 or more; found {limit}")
    use(threads, device)
    from segue.checkpoint import Bundle, load
    from segue.infer.lm_eval import SegueLM, evaluate_tasks, metrics

    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    bundle = placed(load(run), device)
    reading = bundle.reading.changed(segment=segment, memory=memory, clamp=clamp, span=span)
    with Progress("requests") as progress:
        model = SegueLM(
            Bundle(bundle.model, reading, bundle.tokenizer), device=device, seed=seed, report=progress.update
        )
        results = evaluate_tasks(
            model, names, include_path=include_path, num_fewshot=num_fewshot, limit=limit
        )
    if as_json:
        echo(json.dumps(results["results"]))
        return
    for task, name, value in metrics(results):
        echo(f"{task}\t{name}\t{value:.6g}")
