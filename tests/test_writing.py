"""Writing to disk: whole or not at all, never over what is not ours, by one process at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from segue.errors import InputError, SegueError
from segue.files import atomic_folder, beside, locked, never, present, remove_folder, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recipe.toml"
    write_atomically(path, "old", InputError)
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full_disk)
            with pytest.raises(InputError, match="recipe.toml could not be written: No space left"):
                write_atomically(path, "new", InputError)
        assert path.read_text() == "old"
        assert names(tmp_path) == ["recipe.toml"]
    write_atomically(path, "new", InputError)
    assert path.read_text() == "new"


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    with (
        pytest.raises(InputError, match="exists; nothing was overwritten"),
        atomic_folder(tmp_path / "site", InputError),
    ):
        pytest.fail("it must not begin")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at all")
    with pytest.raises(InputError), atomic_folder(tmp_path / "site", InputError, never):
        pytest.fail("it must not begin")


def test_a_folder_that_appears_meanwhile_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "site"

    def overtaken() -> None:
        with atomic_folder(target, InputError):
            target.mkdir()
            (target / "thesis.tex").write_text("mine")

    with pytest.raises(InputError, match="exists"):
        overtaken()
    assert (target / "thesis.tex").read_text() == "mine"
    assert names(tmp_path) == ["site"]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_folder(tmp_path / "link", InputError, lambda _: True) as fresh:
        (fresh / "a").write_text("b")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a").read_text() == "b"
    assert names(tmp_path) == ["link", "real"]


def test_two_writers_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "site"
    with atomic_folder(target, InputError) as fresh:
        (fresh / "a").write_text("first")
        with pytest.raises(InputError, match="another process is writing"), atomic_folder(target, InputError):
            pytest.fail("it must not begin")
        assert (fresh / "a").read_text() == "first"
    assert (target / "a").read_text() == "first"


def test_what_a_killed_writer_left_is_no_hindrance(tmp_path: Path) -> None:
    left = beside(tmp_path / "site", "new")
    (left / "inside").mkdir(parents=True)
    (left / "inside" / "half").write_text("x")
    with atomic_folder(tmp_path / "site", InputError) as fresh:
        assert not list(fresh.iterdir())
    assert names(tmp_path) == ["site"]


def test_a_rename_that_fails_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "site"
    target.mkdir()
    (target / "old").touch()
    real = Path.rename

    def second_fails(path: Path, other: Path) -> Path:
        if path.name.endswith("segue-new"):
            full_disk()
        return real(path, other)

    monkeypatch.setattr(Path, "rename", second_fails)
    with (
        pytest.raises(SegueError, match="unchanged"),
        atomic_folder(target, InputError, lambda _: True) as fresh,
    ):
        (fresh / "new").touch()
    assert names(target) == ["old"]
    assert present(target) == target


def test_a_folder_that_is_removed_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "file").touch()
    seen = []
    real = os.rmdir
    monkeypatch.setattr(
        os, "rmdir", lambda *path, **more: (seen.append(folder.exists()), real(*path, **more))
    )
    remove_folder(folder)
    assert not any(seen)
    assert not list(tmp_path.iterdir())


HOLDER = """
import sys
from pathlib import Path
from segue.errors import InputError
from segue.files import locked
with locked(Path(sys.argv[1]), InputError):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(InputError, match=f"is in use by process {holder.pid} on "),
            locked(tmp_path, InputError),
        ):
            pytest.fail("it must not begin")
        holder.kill()
    with locked(tmp_path, InputError):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
