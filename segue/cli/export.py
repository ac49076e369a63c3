"""`segue export`: write a bundle in a weight layout that other code reads."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.terminal import echo, tell

EXAMPLE = "Example: segue export models/wt103 -o wt103-hf --layout huggingface"


class Layout(StrEnum):
    """Weight layouts for export."""

    REFERENCE = "reference"
    HUGGINGFACE = "huggingface"


def export(
    bundle: Annotated[Path, typer.Argument(help="The bundle to export.", metavar="BUNDLE")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.", metavar="FOLDER")],
    layout: Annotated[
        Layout, typer.Option(help="The layout of the authors' PyTorch code, or of Hugging Face's transfo-xl.")
    ],
) -> None:
    """Export a bundle for other code, as model.safetensors and config.json.

    Importing it again gives bit-identical weights.
    """
    from segue.checkpoint import load
    from segue.interop.files import export_bundle

    tell(f"reading {bundle}")
    notes = export_bundle(load(bundle), output, layout.value)
    for note in notes:
        tell(f"note: {note}")
    echo(f"{output}: written in the {layout.value} layout")
