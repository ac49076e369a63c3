"""Published figures with their sources: the only figures that were typed by hand, all in one file."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _all() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(
        files("segue.lab").joinpath("published.json").read_text(encoding="utf-8")
    )
    return figures


def published(name: str) -> Any:
    """The published figures for an experiment."""
    return _all()[name]


def source(key: str) -> str:
    """The publication behind a key."""
    return str(_all()["sources"][key])
