"""`segue average`: checkpoint averaging; the mean of the last weights is often better than any of them."""

from pathlib import Path
from typing import Annotated

import typer

from segue.cli.terminal import echo

EXAMPLE = "Example: segue average runs/en-de --last 5 -o models/en-de"


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run with several checkpoints (train.keep).")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="BUNDLE", help="The bundle to write.")],
    last: Annotated[int, typer.Option(min=1, help="The number of newest checkpoints to average.")] = 5,
) -> None:
    """Average the weights of a run's newest checkpoints into a bundle."""
    from segue.checkpoint import average as mean

    mean(run, last).save(output)
    echo(f"{output}: the mean of the last {last} checkpoints of {run}")
