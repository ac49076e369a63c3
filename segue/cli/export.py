"""`segue export`: a bundle in a layout that other code reads."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.terminal import echo, tell

EXAMPLE = "Example: segue export models/wt103 -o wt103-hf --layout huggingface"


class Layout(StrEnum):
    """The layouts that a bundle can be written in."""

    REFERENCE = "reference"
    HUGGINGFACE = "huggingface"


def export(
    bundle: Annotated[Path, typer.Argument(help="The bundle to export.", metavar="BUNDLE")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.", metavar="FOLDER")],
    layout: Annotated[Layout, typer.Option(help="The authors' PyTorch code, or Hugging Face's transfo-xl.")],
) -> None:
    """Write a bundle in a foreign layout, as model.safetensors and config.json.

    Importing it again gives the same weights, to the bit.
    """
    from segue.checkpoint import load
    from segue.interop.files import export_bundle

    tell(f"reading {bundle}")
    notes = export_bundle(load(bundle), output, layout.value)
    for note in notes:
        tell(f"note: {note}")
    echo(f"{output}: written in the {layout.value} layout")
