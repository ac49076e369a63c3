"""The pages point to what exists: every link's file is there, and every name beside a link is defined in that file.

A name beside a link is the link's own text, [`name`](file.py), or follows it: [file.py](file.py) `name`, `Class.name`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")])

NAME = r"`[A-Za-z_][\w.]*`"
LINK = re.compile(
    rf"""
    \[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)  # a link, and the names that follow it
    (?P<names>(?:(?:\s+|,\s+|\s+and\s+){NAME})*)
    """,
    re.VERBOSE,
)


def links(page: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Every link within the project: as it is written, its file, and the names beside it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.finditer(text):
        target = link["target"].split("#")[0]
        if target and "://" not in target:
            own = [link["text"]] if re.fullmatch(NAME, link["text"]) else []
            names = [name.strip("`") for name in (*own, *re.findall(NAME, link["names"]))]
            yield link["target"], (page.parent / target).resolve(), names


@cache
def defined(file: Path) -> frozenset[str]:
    """Functions, classes, constants and, as `Class.name`, the methods and attributes of classes."""
    return frozenset(_names(ast.parse(file.read_text(encoding="utf-8")).body))


def _names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}.")
            yield from (f"{prefix}{node.name}.{name}" for name in _attributes(node))
        for target in _targets(node):
            yield from (prefix + name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _attributes(kind: ast.ClassDef) -> Iterator[str]:
    """What the methods of a class assign to `self`."""
    for target in (target for node in ast.walk(kind) for target in _targets(node)):
        for part in ast.walk(target):
            if (
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name)
                and part.value.id == "self"
            ):
                yield part.attr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    missing = {target for target, file, _ in links(page) if not file.exists()}
    assert not missing, f"{page.name} links to what does not exist: {sorted(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_beside_a_link_is_defined_there(page: Path) -> None:
    python = [(file, name) for _, file, names in links(page) if file.suffix == ".py" for name in names]
    wrong = {
        f"{file.relative_to(ROOT)} has no {name}"
        for file, name in python
        if file.exists() and name not in defined(file)
    }
    assert not wrong, f"{page.name}: {'; '.join(sorted(wrong))}"


def test_the_glossary_has_thirty_words_at_most() -> None:
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) - 1 <= 30  # the first names the columns


def test_a_wrong_name_and_a_wrong_file_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "class A:\n    b: int = 0\n    def c(self):\n        self.d = 1\nE, F = 1, 2\n"
    )
    page = tmp_path / "page.md"
    page.write_text(
        "[`A.b`](code.py) and [code.py](code.py) `A.c`, `A.d` and `F`, `gone`; [gone](gone.py), [w](https://w)"
    )
    found = [(target, name) for target, _, names in links(page) for name in names]
    assert found == [("code.py", name) for name in ("A.b", "A.c", "A.d", "F", "gone")]
    assert {"A", "A.b", "A.c", "A.d", "E", "F"} == defined(tmp_path / "code.py")
    assert [target for target, file, _ in links(page) if not file.exists()] == ["gone.py"]
