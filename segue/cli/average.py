"""`segue average`: the mean of a run's last checkpoints, which is often better than any of them."""

from pathlib import Path
from typing import Annotated

import typer

from segue.cli.terminal import echo

EXAMPLE = "Example: segue average runs/en-de --last 5 -o models/en-de"


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that kept several checkpoints.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="BUNDLE", help="Where to write the mean.")
    ],
    last: Annotated[int, typer.Option(min=1, help="How many of the newest checkpoints.")] = 5,
) -> None:
    """Average the weights of a run's newest checkpoints into a bundle."""
    from segue.checkpoint import average as mean

    mean(run, last).save(output)
    echo(f"{output}: the mean of the last {last} checkpoints of {run}")
