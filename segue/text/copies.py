"""Local copies of published data sets: the files of each split in a folder or an archive, whatever surrounds them."""

import tarfile
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from shutil import copyfileobj, rmtree
from typing import IO

from segue.errors import SourceError
from segue.text.sources import BLOCK_BYTES, COMPRESSED, READ_ERRORS, Piece, Pieces, file_pieces


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split: names (with * and ?), of which the first that occurs counts."""

    names: tuple[str, ...]
    count: int = 1

    def chosen(self, found: Mapping[str, list[Path]]) -> list[Path]:
        """The files with the first of the names that occurs, sorted by their own names."""
        paths: list[Path] = []
        for name in self.names:
            paths = paths or [path for plain in found if fnmatchcase(plain, name) for path in found[plain]]
        return sorted(paths, key=lambda path: path.name)

    def match(self, plain: str) -> bool:
        return any(fnmatchcase(plain, name) for name in self.names)


def split_pieces(name: str, path: Path, wanted: Mapping[str, SplitFiles]) -> dict[str, Pieces]:
    """The text of each split; its files, sorted by name, are one document."""
    if not path.is_dir() and not path.is_file():
        raise SourceError(f"there is no {path}; {_expected(name, wanted)}")
    unpacked = _TemporaryFolder() if path.is_file() else None
    if unpacked is not None:
        _unpack(path, wanted, unpacked.path)
    folder = path if unpacked is None else unpacked.path
    found: dict[str, list[Path]] = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        found.setdefault(_plain_name(file.name), []).append(file)
    parts: dict[str, Pieces] = {}
    for split, files in wanted.items():
        paths = files.chosen(found)
        if len(paths) != files.count:
            many = "one file" if files.count == 1 else f"{files.count} files"
            raise SourceError(
                f"{path} should hold {many} for {split} of {name}; found {len(paths)}; {_expected(name, wanted)}"
            )
        parts[split] = _one_document(paths, unpacked)
    return parts


def _expected(name: str, wanted: Mapping[str, SplitFiles]) -> str:
    names = ", ".join(" or ".join(files.names) for files in wanted.values())
    return f"{name} is expected as a folder or an archive (.zip, .tar, .tgz) with {names}"


class _TemporaryFolder:
    """A folder that is removed with its last reference. (tempfile's own warns unless it was closed.)"""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="segue-"))
        weakref.finalize(self, rmtree, self.path, ignore_errors=True)


def _one_document(paths: list[Path], unpacked: _TemporaryFolder | None) -> Pieces:
    read = file_pieces(paths)

    def pieces() -> Iterator[Piece]:
        assert unpacked is None or unpacked.path.exists()  # it lives as long as this function
        for number, piece in enumerate(read()):
            yield piece._replace(begins=number == 0)

    return pieces


def _plain_name(name: str) -> str:
    """The name without the suffix of a compressed file."""
    return next((name.removesuffix(suffix) for suffix in COMPRESSED if name.endswith(suffix)), name)


def _unpack(path: Path, wanted: Mapping[str, SplitFiles], folder: Path) -> None:
    """Write the files that are wanted into the folder. Of their paths in the archive only the last name is used."""
    try:
        for number, (name, opened) in enumerate(_members(path)):
            plain = PurePosixPath(name).name
            if any(files.match(_plain_name(plain)) for files in wanted.values()):
                place = folder / str(number)
                place.mkdir()
                with opened() as packed, (place / plain).open("wb") as file:
                    copyfileobj(packed, file, BLOCK_BYTES)
    except (*READ_ERRORS, tarfile.TarError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is damaged"
        raise SourceError(f"{path} could not be unpacked: {reason}") from None


def _members(path: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """The files in an archive, each with a function that opens it."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, partial(archive.open, info)
        return
    with tarfile.open(path) as tar:
        for entry in tar:
            if entry.isreg():
                yield entry.name, partial(_tar_file, tar, entry)


def _tar_file(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(entry)
    assert file is not None  # it is a regular file
    return file
