"""Bundles of language models and of translators."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from segue.checkpoint.files import (
    CONFIG,
    checksums,
    config_of,
    load_weights,
    save_model,
    verify,
    verify_file,
    write_json,
)
from segue.checkpoint.runs import read_model
from segue.config import BundleConfig, KVCache, Reach, Reading, Translating, TranslatorConfig
from segue.errors import BundleError
from segue.kinds import TaskKind, kind_of
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model, build_translator
from segue.text.corpus import TOKENIZER
from segue.text.pairs import SOURCE_TOKENIZER
from segue.text.special_tokens import text_vocab
from segue.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from segue.infer.session import Session


@dataclass(frozen=True, eq=False)
class Bundle:
    """A language model, its tokenizer, and the settings to read with it."""

    model: LanguageModel
    reading: Reading
    tokenizer: Tokenizer | None = None

    def session(
        self,
        *,
        memory: int | None = None,
        reach: Reach | None = None,
        int8: bool = False,
        kv_cache: KVCache = "exact",
    ) -> "Session":
        """A session: feed it text and generate, at constant memory. `memory` or `reach` replace the bundle's own.

        `int8` and `kv_cache` are as in `frozen()`.
        """
        from segue.infer.session import start_session

        return start_session(self, memory=memory, reach=reach, int8=int8, kv_cache=kv_cache)

    def save(self, path: Path | str) -> None:
        """Write the bundle. An existing bundle is replaced."""
        save_model(path, self.model, lambda folder: describe_bundle(folder, self))


@dataclass(frozen=True, eq=False)
class Translator:
    """An encoder-decoder, its tokenizers, and the settings to translate with it."""

    model: EncoderDecoder
    translating: Translating
    source: Tokenizer
    target: Tokenizer
    lower: bool = False  # it was trained on lower-case text

    @property
    def has_source_tokenizer(self) -> bool:
        """Whether sources are cut by a tokenizer of their own; its ids may still be those of the target's."""
        return bool(self.model.config.source_vocab) or self.source is not self.target

    def save(self, path: Path | str) -> None:
        """Write the bundle. An existing bundle is replaced."""
        save_model(path, self.model, lambda folder: describe_translator(folder, self))


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
    if translator.has_source_tokenizer:
        (folder / SOURCE_TOKENIZER).write_text(translator.source.json(), encoding="utf-8")


def load(path: Path | str) -> Bundle:
    """Load a bundle, or the best checkpoint of a run; every byte and every tensor is verified.

    If a run was never validated, its newest checkpoint is loaded. The model is in eval mode (no dropout).
    """
    return read_model(path, partial(_load_bundle, path))


def load_translator(path: Path | str) -> Translator:
    """Load a translator's bundle, or the best checkpoint of its run; every byte and every tensor is verified."""
    return read_model(path, partial(_load_translator, path))


def task_of(path: Path | str) -> TaskKind:
    """What the model of a bundle or a run is for. Reads and verifies its config, not its weights."""

    def task(folder: Path) -> TaskKind:
        verify_file(folder, CONFIG, checksums(folder))
        return kind_of(config_of(folder)).task

    return read_model(path, task)


def translates(path: Path | str) -> bool:
    """Whether a bundle or a run is a translator's."""
    return task_of(path) == "translation"


def _load_bundle(path: Path | str, folder: Path) -> Bundle:
    verify(folder)
    values = config_of(folder)
    task = kind_of(values).task
    if task == "translation":
        raise BundleError(f"{path} is a translator, which reads pairs and not streams; use segue translate")
    if task == "encoding":
        raise BundleError(f"{path} is an encoder, which reads whole texts and not streams; use segue embed")
    config = BundleConfig(**values)
    model = load_weights(folder, config.model, build_language_model)
    tokenizer = load_tokenizer(folder / TOKENIZER) if (folder / TOKENIZER).exists() else None
    if tokenizer is not None and tokenizer.size > config.model.vocab:
        raise BundleError(_tokenizer_mismatch(folder, tokenizer, config.model.vocab))
    return Bundle(model.eval(), config.reading, tokenizer)


def _load_translator(path: Path | str, folder: Path) -> Translator:
    verify(folder)
    values = config_of(folder)
    if kind_of(values).task != "translation":
        raise BundleError(
            f"{path} is a language model without an encoder and cannot translate; train one on pairs"
        )
    config = TranslatorConfig(**values)
    model = load_weights(folder, config.model, build_translator)
    target = load_tokenizer(folder / TOKENIZER)
    source_vocab = config.model.source_vocab
    own = source_vocab or (folder / SOURCE_TOKENIZER).exists()
    source = load_tokenizer(folder / SOURCE_TOKENIZER) if own else target
    for tokenizer, vocab in ((source, source_vocab or config.model.vocab), (target, config.model.vocab)):
        if tokenizer.size != text_vocab(vocab):
            raise BundleError(_tokenizer_mismatch(folder, tokenizer, text_vocab(vocab)))
    return Translator(model.eval(), config.translating, source, target, config.lower)


def _tokenizer_mismatch(folder: Path, tokenizer: Tokenizer, vocab: int) -> str:
    return f"the tokenizer of {folder} has {tokenizer.size:,} symbols and its model {vocab:,}; copy the bundle again"
