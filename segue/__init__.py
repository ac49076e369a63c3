"""segue: sequence models that read on beyond a fixed context.

    hidden, memory = model(tokens, memory)

Names load on first use, so that `import segue` and `segue --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segue.checkpoint import Bundle, load
    from segue.config import Reach, Reading, XLConfig
    from segue.errors import SegueError
    from segue.infer.session import Session
    from segue.nn.memory import ProjectedMemory, StateMemory
    from segue.nn.xl import TransformerXL
    from segue.presets import preset
    from segue.recipe import Recipe, TrainConfig
    from segue.training.run import resume, train

__version__ = "0.1.0"

__all__ = [
    "Bundle",
    "ProjectedMemory",
    "Reach",
    "Reading",
    "Recipe",
    "SegueError",
    "Session",
    "StateMemory",
    "TrainConfig",
    "TransformerXL",
    "XLConfig",
    "load",
    "preset",
    "resume",
    "train",
]

_HOMES = {
    "Bundle": "segue.checkpoint",
    "ProjectedMemory": "segue.nn.memory",
    "Reach": "segue.config",
    "Reading": "segue.config",
    "Recipe": "segue.recipe",
    "SegueError": "segue.errors",
    "Session": "segue.infer.session",
    "StateMemory": "segue.nn.memory",
    "TrainConfig": "segue.recipe",
    "TransformerXL": "segue.nn.xl",
    "XLConfig": "segue.config",
    "load": "segue.checkpoint",
    "preset": "segue.presets",
    "resume": "segue.training.run",
    "train": "segue.training.run",
}
_ROOMS = ("checkpoint", "config", "errors", "infer", "interop", "nn", "presets", "recipe", "text")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:  # so that `segue.interop.reference` works after a plain `import segue`
        return import_module(f"segue.{name}")
    raise AttributeError(f"module 'segue' has no attribute '{name}'; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
