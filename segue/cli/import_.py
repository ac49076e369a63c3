"""`segue import`: convert a model of other code into a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from segue.cli.terminal import echo, tell

EXAMPLE = "Example: segue import transfo-xl-wt103/ -o models/wt103"


def import_(
    source: Annotated[
        Path,
        typer.Argument(help="A folder, a file of weights, or the .index of a checkpoint.", metavar="SOURCE"),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The bundle to write.", metavar="BUNDLE")],
    config: Annotated[
        Path | None,
        typer.Option(
            help="The config as JSON, if it is neither in the file nor in its folder.", metavar="FILE"
        ),
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(
            help="The vocabulary: text, one symbol per line in the order of ids, or the pickle that was published; "
            "for encoders also tokenizer.json.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Import a Transformer-XL, an encoder-decoder Transformer or an encoder (BERT, ALBERT) of other code.

    Transformer-XL: the authors' TensorFlow checkpoints and PyTorch state dicts, and Hugging Face's transfo-xl folders.
    Translators: Hugging Face's Marian folders (OPUS-MT), CTranslate2's folders, state dicts of torch's nn.Transformer.
    Folders that `segue export --to hf` or save_pretrained wrote, of any kind.
    Encoders: folders of Hugging Face and sentence-transformers, and ONNX files, with the head of their task if they
    have one; --vocab replaces their tokenizer.
    Nothing is ever unpickled: the pickles of published vocabularies are read by a reader that executes nothing.
    A bundle has the reading settings of its source: memory, clamp, span, initial memory, or the pooling of an encoder.
    """
    from segue.checkpoint import Bundle
    from segue.interop.encoders import is_encoder_folder
    from segue.interop.importing import import_model

    tell(f"reading {source}")
    if config is None and is_encoder_folder(source):
        _import_encoder(source, output, vocab)
        return
    bundle = import_model(source, config=config, vocab=vocab)
    tell(f"writing {output}")
    bundle.save(output)
    count = sum(parameter.numel() for parameter in bundle.model.parameters())
    if not isinstance(bundle, Bundle):
        echo(f"{output}: {count:,} parameters; next: segue translate {output} < sentences.txt")
        return
    if bundle.tokenizer is None:
        tell("note: no vocabulary was found; name it with --vocab to read text with the model")
    reach = bundle.reading.reach
    echo(
        f"{output}: {count:,} parameters; reads with memory {reach.memory}, clamp {reach.clamp or 'none'}, "
        f"span {reach.span or 'none'}, initial {reach.initial}"
    )


def _import_encoder(source: Path, output: Path, vocab: Path | None) -> None:
    from segue.interop.encoders import import_encoder

    encoder = import_encoder(source, tokenizer=vocab)
    tell(f"writing {output}")
    encoder.save(output)
    count = sum(parameter.numel() for parameter in encoder.model.parameters())
    reading, task = encoder.reading, encoder.model.task
    echo(
        f"{output}: {count:,} parameters; reads {reading.max_length} tokens, pooling {reading.pooling}"
        f"{', normalized' if reading.normalize else ''}, head: {task.task if task else 'none'}"
    )
