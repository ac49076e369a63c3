"""`segue export`: write a bundle in a format that other code reads."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.terminal import echo, tell
from segue.errors import InputError

EXAMPLE = "Example: segue export runs/en-de -o en-de-ct2 --to ctranslate2 --quantize int8"


class Format(StrEnum):
    """Formats for export."""

    REFERENCE = "reference"
    HUGGINGFACE = "huggingface"
    CTRANSLATE2 = "ctranslate2"


class Quantization(StrEnum):
    """Smaller numbers for weights."""

    INT8 = "int8"


def export(
    bundle: Annotated[Path, typer.Argument(help="The run or bundle to export.", metavar="RUN|BUNDLE")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.", metavar="FOLDER")],
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            "--layout",
            help="The authors' PyTorch code, Hugging Face's transfo-xl, or, for translators, CTranslate2.",
        ),
    ],
    quantize: Annotated[
        Quantization | None, typer.Option(help="CTranslate2: weights as int8 with a scale for each row.")
    ] = None,
) -> None:
    """Export a bundle for other code.

    Transformer-XLs are written as model.safetensors and config.json, and importing them again gives bit-identical
    weights. Encoder-decoder Transformers are written for CTranslate2, with their vocabularies and tokenizers.
    """
    from segue.checkpoint import load, load_translator
    from segue.interop.ctranslate2_export import export_ctranslate2
    from segue.interop.files import export_bundle

    if quantize is not None and to is not Format.CTRANSLATE2:
        raise InputError(f"--quantize is for --to ctranslate2; found --to {to.value}")
    tell(f"reading {bundle}")
    if to is Format.CTRANSLATE2:
        notes = export_ctranslate2(load_translator(bundle), output, int8=quantize is not None)
    else:
        notes = export_bundle(load(bundle), output, to.value)
    for note in notes:
        tell(f"note: {note}")
    echo(f"{output}: written in the {to.value} layout")
