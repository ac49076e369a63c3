"""A digest of the source code that a measurement depends on: if the code changes, the measurement is made again."""

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

ONLY_DRAWS = {"segue.lab.drawing"}
"""Modules that experiments import and that do not influence what they measure."""


@cache
def digest_here(module: str) -> str:
    """The digest of a module of this package, computed once: files that change later are not the code that runs."""
    return digest(module, PACKAGE)


def digest(module: str, package: Path) -> str:
    """A digest of the files of a module and of all modules of the package that it imports, directly or not."""
    state = sha256()
    for name, file in sorted(modules(module, package).items()):
        for part in (file, file.with_suffix(".json")):  # a module's data file has the module's name
            if part.is_file():
                state.update(f"{name} {part.suffix} {part.stat().st_size} ".encode() + part.read_bytes())
    return state.hexdigest()[:16]


def modules(module: str, package: Path) -> dict[str, Path]:
    """A module and all modules of the package that it imports, directly or not, each with its file."""
    files: dict[str, Path] = {}
    names = [module]
    while names:
        name = names.pop()
        file = _file(name, package)
        if file is None or name in files or name in ONLY_DRAWS:
            continue
        files[name] = file
        names.extend(_imported(file))
    return files


def _file(name: str, package: Path) -> Path | None:
    """The file of a module; None for modules of other packages, and for `segue` itself, which imports on demand."""
    if not name.startswith("segue."):
        return None
    place = package.joinpath(*name.split(".")[1:])
    candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _imported(file: Path) -> Iterator[str]:
    """All names that may be modules: what is imported from a package may be one of its modules."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
