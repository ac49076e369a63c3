"""`segue export`: write a bundle in a format that other code reads."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.terminal import echo, tell
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.checkpoint import Bundle, TextEncoder, Translator

EXAMPLE = "Example: segue export runs/en-de -o en-de-ct2 --to ctranslate2 --quantize int8"


class Format(StrEnum):
    """Formats for export."""

    REFERENCE = "reference"
    HUGGINGFACE = "huggingface"
    HF = "hf"
    CTRANSLATE2 = "ctranslate2"
    ONNX = "onnx"


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
            "transfo-xl of old. reference: the authors' PyTorch code. ctranslate2: for translators. onnx: a graph.",
        ),
    ],
    quantize: Annotated[
        Quantization | None,
        typer.Option(help="CTranslate2 and ONNX: weights as int8 with a scale for each row."),
    ] = None,
) -> None:
    """Export a bundle for other code.

    hf takes every model: language models and translators open with AutoModelForCausalLM and AutoModelForSeq2SeqLM after
    `import segue.hf`, encoders with the stock BertModel and BertFor... The layouts reference and huggingface are for
    Transformer-XLs, ctranslate2 for encoder-decoder Transformers. Importing a folder again gives bit-identical weights.
    ONNX is for all: the step of a language model, (tokens, memory, seen) to (logprobs, memory, seen); an encoder with
    its head; the encoder and the decoder of a translator. examples/onnx_generate.py generates text with it.
    """
    from segue.checkpoint import load, load_translator
    from segue.interop.ctranslate2_export import export_ctranslate2
    from segue.interop.files import export_bundle
    from segue.interop.hf_folder import export_hf
    from segue.interop.onnx_export import export_onnx

    if quantize is not None and to not in (Format.CTRANSLATE2, Format.ONNX):
        raise InputError(f"--quantize is for --to ctranslate2 and --to onnx; found --to {to.value}")
    tell(f"reading {bundle}")
    if to is Format.HF:
        notes = export_hf(_load_any(bundle), output)
    elif to is Format.ONNX:
        notes = export_onnx(_load_any(bundle), output, int8=quantize is not None)
    elif to is Format.CTRANSLATE2:
        notes = export_ctranslate2(load_translator(bundle), output, int8=quantize is not None)
    else:
        notes = export_bundle(load(bundle), output, to.value)
    for note in notes:
        tell(f"note: {note}")
    echo(f"{output}: written in the {to.value} layout")


def _load_any(path: Path) -> "Bundle | Translator | TextEncoder":
    """The model of a run or a bundle, whatever it is for."""
    from segue.checkpoint import load, load_encoder_bundle, load_translator, task_of

    task = task_of(path)
    if task == "translation":
        return load_translator(path)
    return load_encoder_bundle(path) if task == "encoding" else load(path)
