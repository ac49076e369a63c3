"""An interactive HTML page of attention weights: every layer and head, in one file that needs no network.

Letters: H heads, T queries, S keys.
"""

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from segue.errors import InputError
from segue.files import write_atomically


@dataclass(frozen=True, eq=False)
class View:
    """The weights of one attention layer, with the texts of its queries and keys."""

    name: str
    queries: Sequence[str]  # T
    keys: Sequence[str]  # S
    weights: Tensor  # (H, T, S)
    memory: int = 0  # the first so many keys are memory
    terms: Mapping[str, Tensor] = field(default_factory=dict)  # (H, T, S) weights of each score term alone
    steps: Sequence[int] = ()  # T: of a Universal Transformer, how many steps each query took in all


def attention_page(
    title: str, subtitle: str, views: Sequence[View], *, first: int = 0, chosen: int | None = None
) -> str:
    """The page as HTML, opened at the `first` view and the `chosen` token (by default the last).

    A weight from 0 to 1 is stored as one byte from 0 to 255.
    """
    if not views:
        raise InputError("there is no attention to show")
    chosen = len(views[first].queries) - 1 if chosen is None else chosen
    data = {
        "subtitle": subtitle,
        "first": first,
        "chosen": chosen,
        "views": [_packed(view) for view in views],
    }
    template = files("segue.lab").joinpath("attention.html").read_text(encoding="utf-8")
    parts = {"__TITLE__": html.escape(title), "__DATA__": json_in_html(data)}
    # In one pass: the data may contain a placeholder too.
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], template)


def json_in_html(data: object) -> str:
    """JSON for a script element: the same values, with every character escaped that HTML or JavaScript would act on.

    `</script>` ends a script; `<!--` followed by `<script` hides its end; U+2028 and U+2029 end a line of JavaScript.
    """
    text = json.dumps(data, ensure_ascii=False)
    return re.sub("[<\u2028\u2029]", lambda mark: f"\\u{ord(mark[0]):04x}", text)


def write_page(path: Path, page: str) -> None:
    write_atomically(path, page, InputError)


def _packed(view: View) -> dict[str, object]:
    heads, queries, keys = view.weights.shape
    assert (queries, keys) == (len(view.queries), len(view.keys)), "one text per row and column"
    return {
        "name": view.name,
        "queries": list(view.queries),
        "keys": list(view.keys),
        "heads": heads,
        "memory": view.memory,
        "steps": list(view.steps),
        "weights": _bytes(view.weights),
        "terms": [{"name": name, "weights": _bytes(term)} for name, term in view.terms.items()],
    }


def _bytes(weights: Tensor) -> str:
    steps = (weights * 255).round().to(torch.uint8).contiguous().cpu()
    return base64.b64encode(steps.numpy().tobytes()).decode()
