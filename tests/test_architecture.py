"""The house plan: imports go down the stairs, files stay short, and dangerous tools stay in their rooms."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import segue
from segue.checkpoint import Bundle
from segue.config import Reach, Reading, XLConfig
from segue.text.tokenizer import ByteTokenizer

PACKAGE = Path(segue.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

STAIRS = (
    ("errors", "progress", "renamed", "checksums"),
    ("files", "native"),
    ("config",),
    ("kinds",),
    ("recipe",),
    ("presets", "text", "nn", "launch"),
    ("footprint",),
    ("scale",),
    ("checkpoint", "distributed"),
    ("infer", "interop"),
    ("hf",),
    ("training",),
    ("lab", "serve"),
    ("cli",),
    ("__main__",),
)
"""From the ground up. A room imports itself and the rooms on lower steps."""

DOORS = {("bundles.py", "segue.infer.session")} | {
    ("encoders.py", f"segue.infer.{verb}") for verb in ("answer", "classify", "embed", "fill", "tag")
}
"""The ways up: `bundle.session()`, `encoder(texts)` and the like, which users call, import their room when called."""

STEP = {room: step for step, rooms in enumerate(STAIRS) for room in rooms}
PRINTING = ("print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write")
ONLY = {"torch.load": "interop/files.py", "torch.distributed": "distributed.py"}
ONLY |= dict.fromkeys(PRINTING, "cli/terminal.py")
NEVER = ("eval", "exec", "pickle.load", "pickle.loads", "torch.save", "marshal.loads", "os.system")


def room_of(file: Path) -> str:
    first = file.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: name the room you import from"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_down_the_stairs(file: Path) -> None:
    room = room_of(file)
    if room == "__init__":
        return
    assert room in STEP, f"{room} has no place in the house plan"
    for name in imports(file):
        if not name.startswith("segue."):
            continue
        other = name.split(".")[1]
        assert other in STEP or other == "__version__", name
        if (
            other in STEP
            and other != room
            and (file.name, name.rsplit(".", 1)[0] if name.count(".") > 2 else name) not in DOORS
        ):
            assert STEP[other] < STEP[room], f"{file.name} climbs up to {name}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_files_and_functions_stay_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 400
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            # what it does; the signature of a command is a list of its options
            length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            assert length <= 50, f"{node.name} has {length} lines"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_dangerous_tools_stay_in_their_rooms(file: Path) -> None:
    place = str(file.relative_to(PACKAGE))
    used = {*calls(file), *imports(file)}
    for tool, home in ONLY.items():
        inside = {name for name in used if name == tool or name.startswith(f"{tool}.")}
        assert not inside or place.startswith(home), f"{tool} belongs in {home}"
    assert not used & set(NEVER)


def test_every_file_says_what_it_is_for() -> None:
    assert [str(file) for file in FILES if not ast.get_docstring(ast.parse(file.read_text()))] == []


@pytest.mark.parametrize("code", ["import segue", "import segue.cli", "import segue.presets, segue.config"])
def test_starting_does_not_wait_for_torch(code: str) -> None:
    check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_loading_does_not_wait_for_torchs_compiler(tmp_path: Path) -> None:
    config = XLConfig(vocab=256, width=16, layers=2, heads=2, cutoffs=(100,), divisor=2, tied=False)
    Bundle(segue.TransformerXL(config), Reading(segment=8, reach=Reach(memory=8)), ByteTokenizer()).save(
        tmp_path / "bundle"
    )
    check = f"import segue, sys; segue.load({str(tmp_path / 'bundle')!r}); sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
