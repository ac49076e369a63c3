"""Reads and writes checkpoints of other code, without ever running code from them.

The only place that calls `torch.load`, and only for tensors (`weights_only=True`).
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from segue.checkpoint import Bundle, write_json, write_tensors
from segue.config import Reach, Reading
from segue.errors import SourceError
from segue.files import atomic_folder
from segue.interop import huggingface, reference, tensorflow, tf_reference
from segue.interop.vocabulary import PICKLES, beside, read_vocabulary
from segue.nn.xl import TransformerXL
from segue.text.parsing import parse_json

LAYOUTS: Mapping[str, ModuleType] = {"reference": reference, "huggingface": huggingface}

INDEX = "model.safetensors.index.json"

HOW_TO_SAVE = (
    "where it was trained, run `safetensors.torch.save_file(model.state_dict(), 'model.safetensors')` "
    "and import that file with its config"
)


@dataclass(frozen=True, eq=False)
class Source:
    """The raw weights and config of a foreign checkpoint."""

    weights: dict[str, Tensor]
    config: dict[str, Any]

    @property
    def layout(self) -> str:
        if self.config.get("model_type") == "transfo-xl":
            return "huggingface"
        if "n_token" in self.config:
            return "reference"
        raise SourceError(
            "the config is neither the authors' (no 'n_token') nor Hugging Face's transfo-xl "
            f"(model_type {self.config.get('model_type')!r}); no other layouts are supported"
        )


def import_bundle(source: Path, *, config: Path | None = None, vocab: Path | None = None) -> Bundle:
    """The model at `source`, with the reading settings of its config.

    Its vocabulary is the one named, or the one that lies beside the weights, if there is one.
    """
    model, reading = (
        _tensorflow(source, config) if tensorflow.is_checkpoint(source) else _torch(source, config)
    )
    vocab = vocab or beside(source)
    tokenizer = None if vocab is None else read_vocabulary(vocab, model.config.vocab)
    return Bundle(model.eval(), reading, tokenizer)


def _torch(source: Path, config: Path | None) -> tuple[TransformerXL, Reading]:
    checkpoint = read_source(source, config)
    layout = LAYOUTS[checkpoint.layout]
    build: Callable[..., tuple[TransformerXL, Reach]] = (
        huggingface.build_transfo_xl if layout is huggingface else reference.build
    )
    return build(checkpoint.weights, checkpoint.config)[0], layout.reading(checkpoint.config)


def _tensorflow(source: Path, config: Path | None) -> tuple[TransformerXL, Reading]:
    flags = {} if config is None else read_config(config)
    return tf_reference.build(tensorflow.read_checkpoint(source), flags), tf_reference.reading(flags)


def export_bundle(bundle: Bundle, target: Path, layout: str) -> list[str]:
    """Write the bundle in a foreign layout; returns notes on settings that the layout cannot express."""
    if not isinstance(bundle.model, TransformerXL):
        raise SourceError(
            f"the {layout} layout is for Transformer-XL; this is a {bundle.model.config.kind} model"
        )
    weights, config, notes = LAYOUTS[layout].export(bundle.model, bundle.reading)
    with atomic_folder(target, SourceError) as folder:
        write_tensors(folder / "model.safetensors", weights)
        write_json(folder / "config.json", config)
    return [*notes, *(["the tokenizer is not written"] if bundle.tokenizer is not None else [])]


def read_source(source: Path, config: Path | None = None) -> Source:
    """Weights and config of a folder, or of one file whose config is in it, in its folder, or given."""
    if not source.exists():
        raise SourceError(f"there is nothing at {source}")
    if source.is_dir():
        return Source(folder_weights(source), read_config(config or source / "config.json"))
    if source.suffix != ".safetensors":
        return Source(load_tensors_only(source), read_config(config or source.with_name("config.json")))
    weights, inside = load_safetensors(source)
    if config is None and inside is not None:
        return Source(weights, inside)
    return Source(weights, read_config(config or source.with_name("config.json")))


def folder_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder as Hugging Face saves it: safetensors, or a .bin of which tensors alone are read."""
    if (folder / "model.safetensors").exists():
        return load_safetensors(folder / "model.safetensors")[0]
    if (folder / INDEX).exists():
        return _sharded(folder)
    if (folder / "pytorch_model.bin").exists():
        return load_tensors_only(folder / "pytorch_model.bin")
    pickled = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
    hint = f"; {pickled[0]} is a pickle, which is never opened: {HOW_TO_SAVE}" if pickled else ""
    raise SourceError(f"{folder} has neither model.safetensors nor pytorch_model.bin{hint}")


def _sharded(folder: Path) -> dict[str, Tensor]:
    """The weights of large models, which Hugging Face saves in several files with an index."""
    homes = read_config(folder / INDEX).get("weight_map")
    if not isinstance(homes, dict) or any(
        not isinstance(name, str) or Path(name).name != name for name in homes.values()
    ):
        raise SourceError(f"{folder / INDEX} should have a weight_map from tensors to files beside it")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(homes.values())):
        weights |= load_safetensors(folder / name)[0]
    if missing := homes.keys() - weights.keys():
        raise SourceError(f"{folder / INDEX} names {min(missing)}, which none of its files has")
    return weights


def load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The weights, and the config if the file's metadata has one."""
    if not path.is_file():
        raise SourceError(f"{path} is not a file")
    try:
        with safe_open(path, "pt") as file:
            inside = (file.metadata() or {}).get("config")
            names = list(file.keys())
            # A recorded reference run has other tensors too, and a prefix before its weights.
            prefix = "weights." if any(name.startswith("weights.") for name in names) else ""
            weights = {
                name.removeprefix(prefix): file.get_tensor(name) for name in names if name.startswith(prefix)
            }
    except SafetensorError as error:
        raise SourceError(f"{path} is not a safetensors file: {error}") from None
    return weights, None if inside is None else _parsed(inside, path)


def load_tensors_only(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a file that it refuses raises an error anyway
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file can raise nearly any exception
        raise SourceError(
            f"{path} is not a plain file of tensors, perhaps a pickled module, "
            f"and nothing is ever unpickled; {HOW_TO_SAVE}"
        ) from None
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise SourceError(f"{path} is not a state dict of tensors; {HOW_TO_SAVE}")
    for name, value in weights.items():
        if value.layout != torch.strided or value.is_meta:
            raise SourceError(f"{path}: {name} is a sparse tensor, or has no values; {HOW_TO_SAVE}")
    return weights


def check_numbers(model: nn.Module, source: Path) -> None:
    """Refuse weights that are infinite or no numbers: whatever such a model says is worth nothing."""
    for name, weight in model.state_dict().items():
        if not weight.isfinite().all():
            raise SourceError(f"{source}: {name} has values that are infinite or no numbers")


def read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SourceError(f"there is no config at {path}; name it with --config")
    return _parsed(path.read_text(encoding="utf-8", errors="replace"), path)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    value = parse_json(text, f"the config in {path}")
    if not isinstance(value, dict):
        raise SourceError(f"the config in {path} should be an object; found {type(value).__name__}")
    return value
