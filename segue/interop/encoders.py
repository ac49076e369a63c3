"""Encoders from anywhere: our bundles and runs, folders of Hugging Face and sentence-transformers, ONNX files."""

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import normalizers

from segue.checkpoint import CHECKPOINTS, TextEncoder, load_encoder_bundle
from segue.config import EncoderReading
from segue.errors import SourceError
from segue.files import present
from segue.interop.bert import build_encoder
from segue.interop.ctranslate2 import is_ctranslate2
from segue.interop.files import check_numbers, folder_weights
from segue.interop.onnx_weights import read_onnx
from segue.interop.tensorflow import is_checkpoint
from segue.text.parsing import parse_json, read_object
from segue.text.wordpiece import WordPiece, read_wordpiece

MODULES = "modules.json"
ONNX_FILES = ("model.onnx", "onnx/model.onnx")
READ_ON = ("transfo-xl", "marian", "torch-transformer", "segue", "segue_seq2seq")
"""Values of `model_type` that are no encoder's."""
POOLING = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
"""How sentence-transformers names what we call a pooling; other kinds are refused."""


def load_encoder(path: Path | str, *, tokenizer: Path | str | None = None) -> TextEncoder:
    """An encoder to call with texts, in evaluation mode.

    `path` is a bundle or a run of segue, a folder of Hugging Face (BERT, ALBERT) or sentence-transformers, or an ONNX
    file of such a model. `tokenizer` is a tokenizer.json or a vocab.txt in place of the folder's own.
    """
    path = Path(path)
    if is_ours(path):
        return load_encoder_bundle(path)
    return import_encoder(path, tokenizer=tokenizer)


def is_ours(path: Path) -> bool:
    """Whether this is a bundle or a run of segue, and no folder of another library."""
    if (path / CHECKPOINTS).is_dir() or not path.exists():
        return True
    config = present(path) / "config.json"
    return config.is_file() and '"segue-' in config.read_text(encoding="utf-8", errors="replace")


def is_encoder_folder(path: Path) -> bool:
    """Whether this is a foreign encoder: an ONNX file, or a folder with the config of a BERT or ALBERT."""
    if is_ours(path) or is_ctranslate2(path):
        return False
    if path.suffix == ".onnx":
        return True
    config = _home(path) / "config.json"
    if is_checkpoint(path) or not config.is_file():
        return False
    values = read_object(config)
    kind = values.get("model_type", "bert" if "hidden_size" in values else None)  # the first BERTs name none
    return kind is not None and kind not in READ_ON


def import_encoder(path: Path, *, tokenizer: Path | str | None = None) -> TextEncoder:
    """The encoder of a foreign folder or ONNX file."""
    if not path.exists():
        raise SourceError(f"there is nothing at {path}")
    home = _home(path)
    config = read_object(home / "config.json")
    if path.is_file():
        if path.suffix != ".onnx":
            raise SourceError(f"{path} is no folder and no .onnx file; name the folder of the model")
        weights = read_onnx(path)
    else:
        weights = _weights(home)
    model = build_encoder(config, weights, str(path))
    check_numbers(model, path)
    sentences = _sentence_settings(path if path.is_dir() else home)
    pieces = _tokenizer(home, tokenizer)
    if pieces.size > model.config.vocab:
        raise SourceError(
            f"the tokenizer of {path} has {pieces.size:,} symbols and its model {model.config.vocab:,}; "
            "do they belong together?"
        )
    if sentences.lower:
        lower = [normalizers.Lowercase()]
        known = [] if pieces.file.normalizer is None else [pieces.file.normalizer]
        pieces.file.normalizer = normalizers.Sequence(lower + known)
    longest = min(model.config.max_positions, sentences.max_length or _longest(home))
    reading = EncoderReading(max_length=longest, pooling=sentences.pooling, normalize=sentences.normalize)
    return TextEncoder(model, pieces, reading)


class SentenceSettings(NamedTuple):
    """How sentence-transformers makes the vector of a text; for a plain BERT, the mean of its states."""

    pooling: Any = "mean"
    normalize: bool = False
    max_length: int | None = None
    lower: bool = False


def _modules(folder: Path) -> dict[str, Path]:
    """The parts of a sentence-transformers folder, by kind; none for another folder."""
    if not (folder / MODULES).is_file():
        return {}
    rows = parse_json((folder / MODULES).read_bytes(), str(folder / MODULES))
    try:
        parts = {str(row["type"]).rpartition(".")[2]: str(row["path"]) for row in rows}
    except (TypeError, KeyError):
        raise SourceError(f"{folder / MODULES} should list objects with a type and a path") from None
    unknown = parts.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Transformer" not in parts:
        raise SourceError(
            f"{folder} has the modules {', '.join(parts) or 'none'}; Transformer, Pooling and Normalize are supported"
        )
    if any(Path(path).is_absolute() or ".." in Path(path).parts for path in parts.values()):
        raise SourceError(f"{folder / MODULES} names a path outside of its folder")
    return {kind: folder / path for kind, path in parts.items()}


def _sentence_settings(folder: Path) -> SentenceSettings:
    parts = _modules(folder)
    if not parts:
        return SentenceSettings()
    reading = parts["Transformer"] / "sentence_bert_config.json"
    values = read_object(reading) if reading.is_file() else {}
    longest = values.get("max_seq_length")
    if longest is not None and not (isinstance(longest, int) and longest > 0):
        raise SourceError(f"{reading}: max_seq_length should be a number of tokens; found {longest!r}")
    pooling = _pooling(parts["Pooling"] / "config.json") if "Pooling" in parts else "mean"
    return SentenceSettings(pooling, "Normalize" in parts, longest, bool(values.get("do_lower_case", False)))


def _pooling(path: Path) -> str:
    values = read_object(path)
    chosen = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    if "pooling_mode" in values:  # as newer versions write it
        named = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
        chosen = [named.get(str(values["pooling_mode"]), str(values["pooling_mode"]))]
    if len(chosen) != 1 or chosen[0] not in POOLING:
        raise SourceError(
            f"{path}: the pooling is {' and '.join(chosen) or 'none'}; cls and mean are supported"
        )
    return POOLING[chosen[0]]


def _home(path: Path) -> Path:
    """The folder with config.json: of sentence-transformers, the Transformer's; of a file, its own or the one above."""
    if path.is_dir():
        return _modules(path).get("Transformer", path)
    beside, above = path.parent, path.resolve().parent.parent
    return beside if (beside / "config.json").is_file() or not (above / "config.json").is_file() else above


def _weights(folder: Path) -> dict[str, Any]:
    usual = [folder / name for name in ("model.safetensors", "pytorch_model.bin")]
    exported = [folder / name for name in ONNX_FILES if (folder / name).is_file()]
    if exported and not any(file.exists() for file in usual):
        return read_onnx(exported[0])
    return folder_weights(folder)


def _tokenizer(folder: Path, given: Path | str | None) -> WordPiece:
    files = [folder / name for name in ("tokenizer.json", "vocab.txt") if (folder / name).is_file()]
    if given is None and not files:
        raise SourceError(f"{folder} has neither tokenizer.json nor vocab.txt; name one with --vocab")
    lower = _tokenizer_settings(folder).get("do_lower_case", True)
    return read_wordpiece(files[0] if given is None else given, lower=bool(lower))


def _longest(folder: Path) -> int:
    """The longest text that the tokenizer's settings allow. (A huge number means: any.)"""
    longest = _tokenizer_settings(folder).get("model_max_length")
    return longest if isinstance(longest, int) and longest > 0 else 2**31


def _tokenizer_settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_object(path) if path.is_file() else {}
