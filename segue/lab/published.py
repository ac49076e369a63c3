"""What was published, with its sources: the only figures that were typed by hand, all in one file."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _all() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        files("segue.lab").joinpath("published.json").read_text(encoding="utf-8")
    )
    return found


def published(name: str) -> Any:
    """The figures that belong to an experiment."""
    return _all()[name]


def source(key: str) -> str:
    """Who published it."""
    return str(_all()["sources"][key])
