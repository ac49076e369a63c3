"""`segue lab`: measures the claims of the papers, and draws them on one page."""

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.machine import Threads, use
from segue.cli.progress import Progress, duration
from segue.cli.terminal import echo, tell
from segue.errors import InputError
from segue.lab.experiment import TITLES, Setting, experiment
from segue.progress import Report

EXAMPLE = "Example: segue lab all --quick -o lab"

USERS = {
    "--run": ("results", "heads"),
    "--models": ("results",),
    "--encoder": ("heads",),
    "--pairs": ("translation",),
    "--words": ("words", "recl_words"),
}
"""The experiments that use an option. Given to another one, it would be ignored."""


def lab(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME|all", help=f"The experiment: {', '.join(TITLES)}; or all."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder for results, pictures, the page, and trained models.",
        ),
    ] = Path("lab"),
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A corpus of `segue prepare`; by default Python's standard library."
        ),
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="A run of `segue train`. A language model is a row of `results`; `heads` asks it, or an encoder of "
            "masked words, which reading of a sentence is likelier. May be repeated.",
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A trained encoder for `heads`: a BERT folder, or a run or bundle."),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Sentence pairs of `segue prepare-pairs`, for `translation`."),
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A corpus of words, such as wikitext-2 of `segue prepare`, for `words` and `recl_words`.",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Figures of `make models`, to add to the results tables."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small versions of the experiments: minutes for all of them.")
    ] = False,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="Draw existing results; measure nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    threads: Threads = 0,
) -> None:
    """Measure a claim of the papers on this machine, and compare it with the published figure.

    Writes NAME.json, pictures and index.html to the output folder. An experiment that was already measured with the
    same settings and code is skipped, except `positions` and `results`, which read the results of others. To continue
    an interrupted one, run the same command again.
    """
    names = list(TITLES) if name == "all" else [name]
    if name != "all" and name not in TITLES:
        experiment(name)  # raises an error that lists the experiments
    given = {"--run": run, "--models": models, "--encoder": encoder, "--pairs": pairs, "--words": words}
    _check_used(name, [option for option, value in given.items() if value])
    if name == "results":
        _check_language_models(run or [])
    from segue.lab.drawing import check_matplotlib

    check_matplotlib()
    from segue.lab.record import make_folder
    from segue.lab.report import check_page, write_report

    check_page(output)
    if not only_report:
        use(threads, "cpu")
        make_folder(output)  # one that cannot be made is found before anything is measured
        setting = Setting(
            data or output / "data" / "stdlib",
            output,
            quick=quick,
            seed=seed,
            runs=tuple(run or ()),
            encoder=encoder,
            pairs=pairs,
            words=words,
            models=models,
        )
        _measure(names, setting, own_data=data is None)
    page, notes = write_report(output, draw=names)
    for note in notes:
        tell(f"note: {note}")
    echo(f"{page}: open it in a browser")


def _check_used(name: str, options: list[str]) -> None:
    for option in options:
        if name != "all" and name not in USERS[option]:
            raise InputError(f"{option} is for {' and '.join(USERS[option])}; {name} does not use it")


def _check_language_models(runs: list[Path]) -> None:
    from segue.checkpoint import task_of

    for run in runs:
        if task_of(run) == "encoding":
            raise InputError(
                f"{run} is an encoder, which has no bits per byte; its figures: segue eval {run}"
            )


def _measure(names: list[str], given: Setting, *, own_data: bool) -> None:
    from segue.lab.record import measured
    from segue.text.corpus import read_header

    command = shlex.join(["segue", *sys.argv[1:]])
    with Progress("done") as progress:
        if own_data:
            _prepare_standard_library(given.data, progress.update)
        if not read_header(given.data).lossless:
            raise InputError(
                f"the lab measures bits per byte, and the tokenizer of {given.data} is not lossless; "
                "prepare it with --tokenizer bytes or bpe"
            )
        skipped = {name: experiment(name).skipped(given) for name in names}  # a wrong folder is found at once
        for number, (name, missing) in enumerate(skipped.items(), start=1):
            begin, where = time.monotonic(), f"{number}/{len(names)} {name}"
            setting = replace(given, report=_within(progress, where))
            if missing and len(names) == 1:
                raise InputError(f"{name} cannot be measured: {missing}")
            if missing:
                tell(f"{where}: skipped: {missing}")
                continue
            try:
                _, fresh = measured(experiment(name), setting, command)
            except KeyboardInterrupt:
                raise InputError(f"stopped in {name}; run the same command to continue") from None
            took = duration(time.monotonic() - begin) if fresh else "already measured"
            tell(f"{where}: {took}")


def _within(progress: Progress, where: str) -> Report:
    return lambda task, done, total: progress.update(f"{where}: {task}", done, total)


def _prepare_standard_library(folder: Path, report: Report) -> None:
    """The default corpus, prepared once in the output folder."""
    from segue.text.prepare import PrepareConfig, prepare
    from segue.text.sources import standard_library

    if not folder.exists():
        prepare(standard_library(), folder, PrepareConfig(), report)
