"""A page that shows where each token looks: every layer and head, in one file, without a network.

Letters: H heads, T queries, S keys.
"""

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from segue.errors import InputError


@dataclass(frozen=True, eq=False)
class View:
    """The weights of one attention, with the words on both sides."""

    name: str
    queries: Sequence[str]  # T
    keys: Sequence[str]  # S
    weights: Tensor  # (H, T, S)
    held: int = 0  # keys that are memory


def attention_page(title: str, told: str, views: Sequence[View], first: int = 0) -> str:
    """The page as HTML. A weight is kept as one byte: 0 to 255 for nothing to all."""
    if not views:
        raise InputError("there is no attention to show")
    data = {"told": told, "first": first, "views": [_packed(view) for view in views]}
    template = files("segue.lab").joinpath("attention.html").read_text(encoding="utf-8")
    # `</` inside a script would end it.
    return template.replace("__TITLE__", html.escape(title)).replace(
        "__DATA__", json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    )


def write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror}") from None


def _packed(view: View) -> dict[str, object]:
    heads, queries, keys = view.weights.shape
    assert (queries, keys) == (len(view.queries), len(view.keys)), "a word for every row and column"
    steps = (view.weights * 255).round().to(torch.uint8).contiguous().cpu()
    return {
        "name": view.name,
        "queries": list(view.queries),
        "keys": list(view.keys),
        "heads": heads,
        "held": view.held,
        "weights": base64.b64encode(steps.numpy().tobytes()).decode(),
    }
