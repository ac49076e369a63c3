"""`segue import`: convert a checkpoint of other code into a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from segue.cli.terminal import echo, tell

EXAMPLE = "Example: segue import transfo-xl-wt103/ -o models/wt103 --vocab vocab.txt"


def import_(
    source: Annotated[
        Path, typer.Argument(help="A folder or a .safetensors file of weights.", metavar="SOURCE")
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
            help="The vocabulary as plain text, one symbol per line in the order of ids.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Import a Transformer-XL checkpoint of other code.

    Two layouts are supported: the authors' PyTorch code (its state dict as safetensors, its constructor's arguments
    as JSON) and Hugging Face's transfo-xl (config.json with model.safetensors or pytorch_model.bin).
    Nothing is ever unpickled. The bundle has the reading settings of the source: memory, clamp, span, initial memory.
    """
    from segue.interop.files import import_bundle

    tell(f"reading {source}")
    bundle = import_bundle(source, config=config, vocab=vocab)
    tell(f"writing {output}")
    bundle.save(output)
    count = sum(parameter.numel() for parameter in bundle.model.parameters())
    reach = bundle.reading.reach
    echo(
        f"{output}: {count:,} parameters; reads with memory {reach.memory}, clamp {reach.clamp or 'none'}, "
        f"span {reach.span or 'none'}, initial {reach.initial}"
    )
