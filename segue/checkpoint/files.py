"""The files of a bundle: written atomically with their checksums, verified before they are read."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from segue.checksums import file_checksum
from segue.config import VocabularyConfig
from segue.errors import BundleError, SegueError
from segue.files import atomic_folder
from segue.kinds import kind_of
from segue.nn.deferred import blank
from segue.nn.fit import check_fit, check_size, too_large
from segue.renamed import renamed
from segue.text.corpus import TOKENIZER
from segue.text.pairs import SOURCE_TOKENIZER

CONFIG, WEIGHTS, CHECKSUMS = "config.json", "model.safetensors", "SHA256SUMS"
COUNTERS = "training.json"
BUNDLE_FILES = {CONFIG, WEIGHTS, CHECKSUMS, TOKENIZER, SOURCE_TOKENIZER}
READ_FILES = {*BUNDLE_FILES, COUNTERS}

Shape = TypeVar("Shape", bound=VocabularyConfig)
Model = TypeVar("Model", bound=nn.Module)


def save_model(path: Path | str, model: nn.Module, write: Callable[[Path], None]) -> None:
    """Write a bundle: `write` puts all files but the weights into a folder. An existing bundle is replaced."""
    with atomic_folder(Path(path), BundleError, _is_only_a_bundle) as folder:
        write(folder)
        write_tensors(folder / WEIGHTS, dict(model.state_dict()))
        seal(folder)


def _is_only_a_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle of segue without other files, so that it may be replaced."""
    if not folder.is_dir() or not (folder / CHECKSUMS).is_file():
        return False
    if any(file.name not in BUNDLE_FILES or not _is_plain_file(file) for file in folder.iterdir()):
        return False
    try:
        values = renamed(read_json(folder / CONFIG))
        content = kind_of(values).bundle
        _ = content and content(**values)
    except (SegueError, TypeError):
        return False
    return content is not None


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def seal(folder: Path) -> None:
    """Write SHA256SUMS: the checksums of all files in the folder."""
    sums = (f"{file_checksum(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    (folder / CHECKSUMS).write_text("".join(sums))


def config_of(folder: Path) -> dict[str, Any]:
    """The values of config.json under the names of this version. Verify the file first."""
    return renamed(read_json(folder / CONFIG))


def load_weights(folder: Path, config: Shape, build: Callable[[Shape], Model]) -> Model:
    """Build a model with the weights of a bundle. Their size is checked before anything is allocated."""
    path = folder / WEIGHTS
    weights = read_tensors(path)
    check_size(config, weights, str(path), BundleError)
    with blank(), too_large(str(path), BundleError):
        model = build(config)
    check_fit(weights, dict(model.state_dict()), str(path), BundleError)
    model.load_state_dict(weights, assign=True)
    return model


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    path.touch()
    mode = path.stat().st_mode  # according to the umask; save_file would make the file unreadable for others
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, path, metadata={"format": "pt"})  # transformers refuses files that do not say so
    except SafetensorError as error:  # the disk is its only cause here
        raise OSError(str(error)) from error
    path.chmod(mode)


def verify(folder: Path) -> None:
    """Check the checksum of every file, and that there is no other file that would be read."""
    sums = checksums(folder)
    for name in {CONFIG, WEIGHTS, *sums}:
        verify_file(folder, name, sums)
    with readable(folder):
        for file in folder.iterdir():
            if file.name not in (*sums, CHECKSUMS) and (
                file.suffix == ".safetensors" or file.name in READ_FILES
            ):
                raise BundleError(f"{file} is not among the files that were saved; remove it")


def checksums(folder: Path) -> dict[str, str]:
    with readable(folder):
        if not (folder / CHECKSUMS).is_file():
            raise BundleError(f"{folder} has no {CHECKSUMS}, so it is incomplete; copy or import it again")
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def verify_file(folder: Path, name: str, sums: dict[str, str]) -> None:
    with readable(folder):
        if Path(name).name != name or not (folder / name).is_file():
            raise BundleError(f"{folder} lacks {name}; copy or import it again")
        if sums.get(name) != file_checksum(folder / name):
            raise BundleError(
                f"{folder / name} is not the file that was saved (its checksum differs); restore it"
            )


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BundleError(f"{folder} could not be read: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(f"{path} could not be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise BundleError(f"{path} should hold an object; found {type(value).__name__}")
    return value


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except OSError as error:
        raise BundleError(f"{path} could not be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise BundleError(f"{path} is no safetensors file: {error}") from None
