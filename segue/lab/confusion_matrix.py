"""The confusion matrix of a classifier as a picture."""

import io
from collections.abc import Sequence
from pathlib import Path

from segue.errors import InputError
from segue.files import write_atomically
from segue.lab.drawing import canvas, check_matplotlib, style

KINDS = (".png", ".svg", ".pdf")
MOST_NUMBERS = 12
"""Labels up to which the counts are written into the cells."""


def check_picture(path: Path) -> None:
    """Refuse what cannot be drawn: before anything is computed."""
    check_matplotlib()
    if path.suffix not in KINDS:
        raise InputError(f"a picture is a file that ends in {', '.join(KINDS)}; found {path.name}")


def draw_confusion(counts: Sequence[Sequence[int]], labels: Sequence[str], path: Path) -> None:
    """Write the counts, a row for each right label; colours are shares of their row."""
    size = min(12.0, 2.5 + 0.45 * len(labels))
    with style():
        figure, (axis,) = canvas(width=size, height=size)
        shares = [[count / max(1, sum(row)) for count in row] for row in counts]
        image = axis.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        axis.grid(visible=False)
        axis.set_xticks(range(len(labels)), labels, rotation=90)
        axis.set_yticks(range(len(labels)), labels)
        axis.set_xlabel("predicted")
        axis.set_ylabel("right")
        for row, column in (
            (row, column)
            for row in range(len(labels))
            for column in range(len(labels))
            if len(labels) <= MOST_NUMBERS
        ):
            dark = shares[row][column] > 0.6
            axis.text(
                column,
                row,
                f"{counts[row][column]:,}",
                ha="center",
                va="center",
                color="white" if dark else "black",
            )
        figure.colorbar(image, ax=axis, label="share of the right label", shrink=0.8)
        memory = io.BytesIO()
        figure.savefig(memory, format=path.suffix.removeprefix("."), dpi=144, facecolor="white")
    write_atomically(path, memory.getvalue(), InputError)
