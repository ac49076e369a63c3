"""Which format a model of other code has, and the importer for it."""

from pathlib import Path

from segue.checkpoint import Bundle, Translator
from segue.interop.ctranslate2 import is_ctranslate2, load_ctranslate2
from segue.interop.files import check_numbers, import_bundle, read_source
from segue.interop.hf_folder import LANGUAGE, TRANSLATOR, import_hf
from segue.interop.marian import load_marian
from segue.interop.tensorflow import is_checkpoint
from segue.interop.torch_transformer import KIND, load_torch_transformer
from segue.text.parsing import read_object


def import_model(
    source: Path, *, config: Path | None = None, vocab: Path | None = None
) -> Bundle | Translator:
    """The language model or the translator at `source`."""
    imported = _imported(source, config, vocab)
    check_numbers(imported.model, source)
    return imported


def _imported(source: Path, config: Path | None, vocab: Path | None) -> Bundle | Translator:
    if is_ctranslate2(source):
        return load_ctranslate2(source)
    path = config or (source if source.is_dir() else source.parent) / "config.json"
    kind = read_object(path).get("model_type") if path.is_file() and not is_checkpoint(source) else None
    if kind not in ("marian", KIND, LANGUAGE, TRANSLATOR):
        return import_bundle(source, config=config, vocab=vocab)
    checkpoint = read_source(source, config)
    if kind in (LANGUAGE, TRANSLATOR):
        folder = source if source.is_dir() else source.parent
        return import_hf(folder, checkpoint.config, checkpoint.weights, vocab=vocab)
    if kind == KIND:
        return load_torch_transformer(path.parent, checkpoint.weights, checkpoint.config)
    return load_marian(path.parent, checkpoint.weights, checkpoint.config)
