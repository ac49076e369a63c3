"""Atomic writes of files and folders, and locks that end with their process.

New content is written beside the target under a temporary name (`.NAME.segue-new`), flushed to the disk, and only then
renamed. Whatever happens, either the old content or the new content is complete.
"""

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from segue.errors import SegueError

LOCK = "lock"
"""The file in a locked folder that says which process holds the lock."""


def write_atomically(path: Path, content: str | bytes, wrong: type[SegueError]) -> None:
    """Write or replace a file atomically, text as UTF-8. An OSError is raised again as the class `wrong`."""
    fresh = beside(path, "new")
    try:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        flush(fresh)
        fresh.replace(path)
        flush(path.parent)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise wrong(f"{path} could not be written: {error.strerror or error}; it is as it was") from None


def never(folder: Path) -> bool:  # noqa: ARG001
    """Never replace an existing folder."""
    return False


@contextmanager
def atomic_folder(
    target: Path, wrong: type[SegueError], replaceable: Callable[[Path], bool] = never
) -> Iterator[Path]:
    """A new folder to write into. It becomes `target` only when it is complete and on the disk.

    An existing folder is replaced only if `replaceable` allows it, so that no other files of the user are deleted.
    """
    target = target.resolve()  # a symbolic link to a folder stays a link
    check_replaceable(target, wrong, replaceable)
    fresh, handle, renamed = beside(target, "new"), -1, False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = _own_folder(fresh, target, wrong)
        yield fresh
        for folder, _, files in os.walk(fresh, topdown=False):
            for name in files:
                flush(Path(folder, name))
            flush(Path(folder))
        check_replaceable(target, wrong, replaceable)  # it may have appeared in the meantime
        _rename_over(fresh, target)
        renamed = True
    except OSError as error:
        raise wrong(f"{target} could not be written: {error}; what was there is unchanged") from error
    finally:
        try:
            if handle >= 0 and not renamed:  # after that, another process may use the temporary name
                shutil.rmtree(fresh, ignore_errors=True)
        finally:
            if handle >= 0:
                os.close(handle)


def check_replaceable(target: Path, wrong: type[SegueError], replaceable: Callable[[Path], bool]) -> None:
    """Refuse to replace what segue has not written."""
    if os.path.lexists(target) and not replaceable(target):
        more = "" if replaceable is never else " and is not a bundle of segue, or holds more than that"
        raise wrong(f"{target} exists{more}; nothing was overwritten: choose another name or remove it")


def is_file(path: Path) -> bool:
    """As `path.is_file()`, which raises an OSError if the name is too long."""
    return os.path.isfile(path)  # noqa: PTH113


def present(target: Path) -> Path:
    """The folder; or its predecessor, after a crash between the two renames of `_rename_over`."""
    previous = beside(target.resolve(), "previous")
    return previous if not target.exists() and previous.is_dir() else target


def beside(target: Path, what: str) -> Path:
    """A temporary name in the same folder."""
    return target.with_name(f".{target.name}.segue-{what}")


def _own_folder(fresh: Path, target: Path, wrong: type[SegueError]) -> int:
    """Make an empty folder, and lock it against other processes that write the same target."""
    while True:
        fresh.mkdir(exist_ok=True)
        handle = os.open(fresh, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise wrong(f"another process is writing {target}; wait for it, or choose another name") from None
        except OSError:
            pass  # network file systems lock files only, not folders
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), fresh.stat()):
                break
        os.close(handle)  # another process renamed or removed it before we had the lock
    for leftover in fresh.iterdir():  # left by a killed process
        shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()
    return handle


def _rename_over(fresh: Path, target: Path) -> None:
    """Rename `fresh` to `target`, in place of an existing folder."""
    previous = beside(target, "previous")
    if target.exists():
        shutil.rmtree(previous, ignore_errors=True)
        target.rename(previous)  # after a crash between these two lines, `present` finds it
    try:
        fresh.rename(target)
    except OSError:
        if previous.exists():
            previous.rename(target)
        raise
    flush(target.parent)
    shutil.rmtree(previous, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically: another process that reads it finds all of it or nothing."""
    renamed = beside(folder, "old")
    shutil.rmtree(renamed, ignore_errors=True)
    folder.rename(renamed)
    shutil.rmtree(renamed)


def flush(path: Path) -> None:
    """Force a file, or the list of names in a folder, to the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path, wrong: type[SegueError]) -> Iterator[None]:
    """Lock the folder for this process. A second process gets an error that names the first.

    It is a lock of the operating system (`flock`), which ends with the process however that ends. It works over NFS if
    the server supports locks.
    """
    path = folder / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise wrong(f"{path} could not be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise wrong(f"{folder} is in use by {_holder(path)}; wait for it to end, or stop it") from None
        except OSError:
            pass  # a file system without locks
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        with suppress(OSError):  # on a full disk the error of a second process names nobody
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(handle)


def _holder(path: Path) -> str:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(values['pid'])} on {values['host']} since {values['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
