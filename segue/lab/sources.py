"""The code that a measurement depends on, as a digest: what was measured by other code is measured again."""

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

ONLY_DRAWS = {"segue.lab.drawing"}
"""Imported by experiments, and without influence on what they measure."""


@cache
def digest_here(module: str) -> str:
    """The digest of a module of this package, taken once: code that changes while it runs is not the code that runs."""
    return digest(module, PACKAGE)


def digest(module: str, package: Path) -> str:
    """Over the bytes of a module, of all modules of the package that it imports, and of what those import."""
    whole = sha256()
    for name, file in sorted(modules(module, package).items()):
        for part in (file, file.with_suffix(".json")):  # figures that belong to a module have its name
            if part.is_file():
                whole.update(f"{name} {part.suffix} {part.stat().st_size} ".encode() + part.read_bytes())
    return whole.hexdigest()[:16]


def modules(module: str, package: Path) -> dict[str, Path]:
    """A module, and those of the package that it imports directly or through others, each with its file."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file(name, package)
        if file is None or name in found or name in ONLY_DRAWS:
            continue
        found[name] = file
        waiting.extend(_imported(file))
    return found


def _file(name: str, package: Path) -> Path | None:
    """Where a module lies; None for what is none of the package's, and for its front door, which imports on demand."""
    if not name.startswith("segue."):
        return None
    place = package.joinpath(*name.split(".")[1:])
    candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _imported(file: Path) -> Iterator[str]:
    """All that might be a module: a name that is imported from a package may be one of its modules."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
