"""What is attacked: small valid files, how they are mutated, and how they are opened and used.

What opens must make sense: it is read with, as the commands would.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mutations import Mutation
from segue.checkpoint import Bundle
from segue.config import Reach, Reading, RecurrentConfig, XLConfig
from segue.nn.models import build_language_model
from segue.text.tokenizer import Tokenizer

TEXT = b"the sea\na ship went out and came home\nwith fish for all\n" * 10
READING = Reading(segment=4, reach=Reach(memory=4))
MODEL = {"vocab": 256, "width": 4, "layers": 1, "heads": 1, "feedforward": 4}
LONGEST = 512
"""States and steps that a use of what was opened goes to: a setting of more is not an attack on the reader."""


@dataclass(frozen=True, eq=False)
class Target:
    """A kind of file or folder."""

    name: str
    files: Mapping[str, bytes]
    hits: Mapping[str, Mutation]  # which of them are mutated, and how
    read: Callable[[Path], object]
    mend: Callable[[Path], None] = field(default=lambda _: None)  # make its checksums right again
    mended: tuple[str, ...] = ()  # the files that hold them
    share: int = 4  # of the cases
    grows: bool = False  # reading it writes files into its folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def fresh_model(config: XLConfig | RecurrentConfig) -> Any:
    torch.manual_seed(0)
    return build_language_model(config).eval()


@torch.no_grad()
def use_bundle(bundle: Bundle) -> None:
    """Read a few tokens and their nats, and a text."""
    model, reach = bundle.model, bundle.reading.reach
    if max(reach.memory, bundle.reading.segment) > LONGEST:
        return
    tokens = torch.arange(3)[None] % model.config.vocab
    hidden, _ = model(tokens, model.start(lanes=1, reach=reach))
    assert model.nats(hidden, tokens).shape == tokens.shape
    assert model.logprobs(hidden).size(-1) == model.config.vocab
    if bundle.tokenizer is not None:
        use_tokenizer(bundle.tokenizer)
        session = bundle.session()
        session.feed(b"the sea")
        session.generate(2, seed=0)


def use_tokenizer(tokenizer: Tokenizer) -> None:
    tokenizer.decode(range(min(300, tokenizer.size)))
    assert len(tokenizer.sizes) == tokenizer.size
    ids = np.asarray(tokenizer.encode(b"the sea"))
    assert not len(ids) or ids.max() < tokenizer.size
