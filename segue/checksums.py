"""SHA-256 of files. A bundle's weights can be summed up in the background, while torch is being imported."""

import hashlib
import threading
from pathlib import Path

SUFFIX = ".safetensors"

_AHEAD: dict[tuple[int, ...], "_Sum"] = {}


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file as it is now, in hexadecimal."""
    begun = _AHEAD.pop(_state(path), None) if _AHEAD else None
    return (begun and begun.result()) or _summed(path)


def sum_ahead(folder: Path) -> None:
    """Begin to sum up the weights of a bundle. `file_checksum` then waits for them only if they are not ready.

    A file that changes in the meantime is summed up again. What is no bundle is left to whoever loads it.
    """
    try:
        for path in folder.glob(f"*{SUFFIX}"):
            _AHEAD[_state(path)] = _Sum(path)
    except OSError:
        return


def _state(path: Path) -> tuple[int, ...]:
    """Tells whether a file has changed."""
    now = path.stat()
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _summed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Sum:
    """A checksum that is being computed."""

    def __init__(self, path: Path) -> None:
        self._path, self._sum = path, ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="segue-checksum")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._sum = _summed(self._path)
        except OSError:
            return

    def result(self) -> str:
        """Empty if the file could not be read."""
        self._thread.join()
        return self._sum
