"""Parsing JSON of others: every problem is an error of one line."""

import json
from pathlib import Path
from typing import Any

from segue.errors import SourceError


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text; `name` is its name in error messages."""
    try:
        return json.loads(text)
    except RecursionError:
        raise SourceError(f"{name} is nested too deeply to be read; is it the right file?") from None
    except ValueError as error:
        raise SourceError(f"{name} is no JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    if path.exists() and not path.is_file():  # a device or a pipe would be read for ever
        raise SourceError(f"{path} is not a file")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror}") from None
    value = parse_json(text, str(path))
    if not isinstance(value, dict):
        raise SourceError(f"{path} should hold an object; found {type(value).__name__}")
    return value
