"""Import and export of models in the formats of other code."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("huggingface", "reference"):  # so that `segue.interop.reference` works after `import segue`
        return import_module(f"segue.interop.{name}")
    raise AttributeError(f"module 'segue.interop' has no attribute '{name}'")
