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
    HF = "hf"
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
            help="hf: Hugging Face's library today (after `import segue.hf`; encoders as BERT). huggingface: its "
            "transfo-xl of old. reference: the authors' PyTorch code. ctranslate2: for translators.",
        ),
    ],
    quantize: Annotated[
        Quantization | None, typer.Option(help="CTranslate2: weights as int8 with a scale for each row.")
    ] = None,
) -> None:
    """Export a bundle for other code.

    hf takes every model: language models and translators open with AutoModelForCausalLM and AutoModelForSeq2SeqLM after
    `import segue.hf`, encoders with the stock BertModel and BertFor... The layouts reference and huggingface are for
    Transformer-XLs, ctranslate2 for encoder-decoder Transformers. Importing a folder again gives bit-identical weights.
    """
    from segue.checkpoint import load, load_translator
    from segue.interop.ctranslate2_export import export_ctranslate2
    from segue.interop.files import export_bundle

    if quantize is not None and to is not Format.CTRANSLATE2:
        raise InputError(f"--quantize is for --to ctranslate2; found --to {to.value}")
    tell(f"reading {bundle}")
    if to is Format.HF:
        notes = _export_hf(bundle, output)
    elif to is Format.CTRANSLATE2:
        notes = export_ctranslate2(load_translator(bundle), output, int8=quantize is not None)
    else:
        notes = export_bundle(load(bundle), output, to.value)
    for note in notes:
        tell(f"note: {note}")
    echo(f"{output}: written in the {to.value} layout")


def _export_hf(bundle: Path, output: Path) -> list[str]:
    from segue.checkpoint import load, load_encoder_bundle, load_translator, task_of
    from segue.interop.hf_folder import export_hf

    match task_of(bundle):
        case "translation":
            return export_hf(load_translator(bundle), output)
        case "encoding":
            return export_hf(load_encoder_bundle(bundle), output)
    return export_hf(load(bundle), output)
