"""Bundles: a trained model on disk, in safetensors and JSON, with checksums. Never a pickle.

    config.json         the shape of the model, and how to read with it
    model.safetensors   its weights
    tokenizer.json      if it has one
    SHA256SUMS          in the format of `sha256sum -c`

A run has such folders under `checkpoints/`, one for each saved step, each with the state of training in it.

A bundle is written atomically (`files.py`): whatever happens, either the old one or the new one is complete.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from segue.config import (
    BundleConfig,
    Reach,
    Reading,
    Translating,
    TranslatorConfig,
    VocabularyConfig,
)
from segue.errors import BundleError, SegueError
from segue.files import atomic_folder, present
from segue.kinds import kind_of
from segue.nn.deferred import blank
from segue.nn.fit import check_fit, check_size, too_large
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model, build_translator
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.recipe import read_recipe, recipe_of
from segue.renamed import renamed
from segue.text.corpus import TOKENIZER, file_checksum
from segue.text.pairs import SOURCE_TOKENIZER
from segue.text.special_tokens import text_vocab
from segue.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from segue.infer.session import Session

CONFIG, WEIGHTS, CHECKSUMS = "config.json", "model.safetensors", "SHA256SUMS"
CHECKPOINTS, COUNTERS = "checkpoints", "training.json"
BUNDLE_FILES = {CONFIG, WEIGHTS, CHECKSUMS, TOKENIZER, SOURCE_TOKENIZER}
READ_FILES = {*BUNDLE_FILES, COUNTERS}

Loaded = TypeVar("Loaded")
Shape = TypeVar("Shape", bound=VocabularyConfig)
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Bundle:
    """A language model, its tokenizer, and the settings to read with it."""

    model: LanguageModel
    reading: Reading
    tokenizer: Tokenizer | None = None

    def session(
        self, *, memory: int | None = None, reach: Reach | None = None, int8: bool = False
    ) -> "Session":
        """A session: feed it text and generate, at constant memory. `memory` or `reach` replace the bundle's own."""
        from segue.infer.session import start_session

        return start_session(self, memory=memory, reach=reach, int8=int8)

    def save(self, path: Path | str) -> None:
        """Write the bundle. An existing bundle is replaced."""
        _save(path, self.model, lambda folder: describe_bundle(folder, self))


@dataclass(frozen=True, eq=False)
class Translator:
    """An encoder-decoder, its tokenizers, and the settings to translate with it."""

    model: Seq2Seq | RecurrentSeq2Seq
    translating: Translating
    source: Tokenizer
    target: Tokenizer
    lower: bool = False  # it was trained on lower-case text

    def save(self, path: Path | str) -> None:
        """Write the bundle. An existing bundle is replaced."""
        _save(path, self.model, lambda folder: describe_translator(folder, self))


def describe_bundle(folder: Path, bundle: Bundle) -> None:
    """Write the files of a bundle except its weights into a folder."""
    config = BundleConfig(model=bundle.model.config, reading=bundle.reading)
    write_json(folder / CONFIG, config.model_dump(mode="json"))
    if bundle.tokenizer is not None:
        (folder / TOKENIZER).write_text(bundle.tokenizer.json(), encoding="utf-8")


def describe_translator(folder: Path, translator: Translator) -> None:
    """Write the files of a translator's bundle except its weights into a folder."""
    config = TranslatorConfig(
        model=translator.model.config, translating=translator.translating, lower=translator.lower
    )
    write_json(folder / CONFIG, config.model_dump(mode="json"))
    (folder / TOKENIZER).write_text(translator.target.json(), encoding="utf-8")
    if translator.model.config.source_vocab:
        (folder / SOURCE_TOKENIZER).write_text(translator.source.json(), encoding="utf-8")


def _save(path: Path | str, model: nn.Module, write: Callable[[Path], None]) -> None:
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


def load(path: Path | str) -> Bundle:
    """Load a bundle, or the best checkpoint of a run; every byte and every tensor is verified.

    If a run was never validated, its newest checkpoint is loaded. The model is in eval mode (no dropout).
    """
    return _read(path, partial(_load_bundle, path))


def load_translator(path: Path | str) -> Translator:
    """Load a translator's bundle, or the best checkpoint of its run; every byte and every tensor is verified."""
    return _read(path, partial(_load_translator, path))


def translates(path: Path | str) -> bool:
    """Whether a bundle or a run is a translator's. Reads and verifies its config, not its weights."""

    def task(folder: Path) -> str:
        _verify_file(folder, CONFIG, _checksums(folder))
        return kind_of(_config(folder)).task

    return _read(path, task) == "translation"


def _read(path: Path | str, read: Callable[[Path], Loaded]) -> Loaded:
    """Call `read` with the folder of a bundle, or of a run's best checkpoint. The run may be training meanwhile."""
    run = Path(path)
    if not (run / CHECKPOINTS).is_dir():
        return read(_present(run))
    while True:
        folder = best_checkpoint(run)
        try:
            return read(folder)
        except SegueError:
            if folder.exists():
                raise
            # else the run has removed it, after it saved a newer one


def _load_bundle(path: Path | str, folder: Path) -> Bundle:
    verify(folder)
    values = _config(folder)
    if kind_of(values).task == "translation":
        raise BundleError(f"{path} is a translator, which reads pairs and not streams; use segue translate")
    config = BundleConfig(**values)
    model = _load_weights(folder, config.model, build_language_model)
    tokenizer = load_tokenizer(folder / TOKENIZER) if (folder / TOKENIZER).exists() else None
    if tokenizer is not None and tokenizer.size > config.model.vocab:
        raise BundleError(_tokenizer_mismatch(folder, tokenizer, config.model.vocab))
    return Bundle(model.eval(), config.reading, tokenizer)


def _load_translator(path: Path | str, folder: Path) -> Translator:
    verify(folder)
    values = _config(folder)
    if kind_of(values).task != "translation":
        raise BundleError(
            f"{path} is a language model without an encoder and cannot translate; train one on pairs"
        )
    config = TranslatorConfig(**values)
    model = _load_weights(folder, config.model, build_translator)
    target = load_tokenizer(folder / TOKENIZER)
    source_vocab = config.model.source_vocab
    source = load_tokenizer(folder / SOURCE_TOKENIZER) if source_vocab else target
    for tokenizer, vocab in ((source, source_vocab or config.model.vocab), (target, config.model.vocab)):
        if tokenizer.size != text_vocab(vocab):
            raise BundleError(_tokenizer_mismatch(folder, tokenizer, text_vocab(vocab)))
    return Translator(model.eval(), config.translating, source, target, config.lower)


def _config(folder: Path) -> dict[str, Any]:
    """The values of config.json under the names of this version. Verify the file first."""
    return renamed(read_json(folder / CONFIG))


def _tokenizer_mismatch(folder: Path, tokenizer: Tokenizer, vocab: int) -> str:
    return f"the tokenizer of {folder} has {tokenizer.size:,} symbols and its model {vocab:,}; copy the bundle again"


def _load_weights(folder: Path, config: Shape, build: Callable[[Shape], Model]) -> Model:
    """Build a model with the weights of a bundle. Their size is checked before anything is allocated."""
    path = folder / WEIGHTS
    weights = read_tensors(path)
    check_size(config, weights, str(path), BundleError)
    with blank(), too_large(str(path), BundleError):
        model = build(config)
    check_fit(weights, dict(model.state_dict()), str(path), BundleError)
    model.load_state_dict(weights, assign=True)
    return model


def checkpoints(run: Path) -> list[Path]:
    """A run's checkpoints, from the oldest to the newest."""
    folders = (run / CHECKPOINTS).glob("step-*")
    return sorted(folder for folder in folders if folder.name.removeprefix("step-").isdecimal())


def best_checkpoint(run: Path) -> Path:
    """The checkpoint with the best validation metric, or the newest if the run was never validated."""
    while True:
        saved = checkpoints(run)
        if not saved:
            raise BundleError(f"{run} has no checkpoint yet")
        try:
            _verify_file(saved[-1], COUNTERS, _checksums(saved[-1]))  # it decides which weights are loaded
            step = read_json(saved[-1] / COUNTERS).get("best_step")
        except BundleError:
            if saved[-1].exists():
                raise
            continue  # removed by a run that is still training
        return next((folder for folder in saved if step_of(folder) == step), saved[-1])


def checkpoint_path(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def average(run: Path, last: int) -> Bundle | Translator:
    """Checkpoint averaging: the newest checkpoint with the mean of the weights of the `last` newest ones."""
    while True:
        folders = newest_checkpoints(run)[-last:]
        if len(folders) < last:
            raise BundleError(
                f"{run} keeps {len(folders)} of its newest checkpoints and {last} were asked for; "
                f"train with train.keep={last} or more"
            )
        try:
            return _mean(folders)
        except SegueError:
            if all(folder.exists() for folder in folders):  # else the run is training and has removed one
                raise


def _mean(folders: Sequence[Path]) -> Bundle | Translator:
    newest = load_translator(folders[-1]) if translates(folders[-1]) else load(folders[-1])
    mean: dict[str, Tensor] = {}
    for folder in folders:
        verify(folder)
        for name, weight in read_tensors(folder / WEIGHTS).items():
            share = weight.double() / len(folders)  # in float64, so that the order does not matter
            mean[name] = mean[name] + share if name in mean else share
    dtypes = {name: weight.dtype for name, weight in newest.model.state_dict().items()}
    newest.model.load_state_dict({name: weight.to(dtypes[name]) for name, weight in mean.items()})
    return newest


def newest_checkpoints(run: Path) -> list[Path]:
    """The checkpoints that a run keeps as its newest (`train.keep`); not the initial one, nor the best or the trunk."""
    keep = recipe_of(read_recipe(run / "recipe.toml")).train.keep
    return [folder for folder in checkpoints(run)[-keep:] if step_of(folder) > 0]


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    path.touch()
    mode = path.stat().st_mode  # according to the umask; save_file would make the file unreadable for others
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, path, metadata={"format": "pt"})  # transformers refuses files that do not say so
    except SafetensorError as error:  # the disk is its only cause here
        raise OSError(str(error)) from error
    path.chmod(mode)


def _present(path: Path) -> Path:
    folder = present(path)
    if (folder / CONFIG).is_file():
        return folder
    if path.exists():
        raise BundleError(
            f"{path} is no bundle: it has no {CONFIG}; a foreign checkpoint needs `segue import` first"
        )
    raise BundleError(f"there is no bundle at {path}")


def verify(folder: Path) -> None:
    """Check the checksum of every file, and that there is no other file that would be read."""
    sums = _checksums(folder)
    for name in {CONFIG, WEIGHTS, *sums}:
        _verify_file(folder, name, sums)
    with _readable(folder):
        for file in folder.iterdir():
            if file.name not in (*sums, CHECKSUMS) and (
                file.suffix == ".safetensors" or file.name in READ_FILES
            ):
                raise BundleError(f"{file} is not among the files that were saved; remove it")


def _checksums(folder: Path) -> dict[str, str]:
    with _readable(folder):
        if not (folder / CHECKSUMS).is_file():
            raise BundleError(f"{folder} has no {CHECKSUMS}, so it is incomplete; copy or import it again")
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _verify_file(folder: Path, name: str, sums: dict[str, str]) -> None:
    with _readable(folder):
        if Path(name).name != name or not (folder / name).is_file():
            raise BundleError(f"{folder} lacks {name}; copy or import it again")
        if sums.get(name) != file_checksum(folder / name):
            raise BundleError(
                f"{folder / name} is not the file that was saved (its checksum differs); restore it"
            )


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
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
