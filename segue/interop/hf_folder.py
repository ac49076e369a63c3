"""Folders that Hugging Face's `from_pretrained` opens after `import segue.hf`, and what its `save_pretrained` writes.

Weights have our own names behind "model."; config.json holds what a bundle's config.json holds, and ids of symbols.
Encoders are written as the BERT or ALBERT that they are, so that the stock library opens them by itself.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from segue.checkpoint import Bundle, TextEncoder, Translator, write_json, write_tensors
from segue.config import BundleConfig, Settings, TranslatorConfig, VocabularyConfig
from segue.errors import SourceError
from segue.files import atomic_folder
from segue.interop.bert_export import write_bert
from segue.interop.hf_tokenizer import (
    FILE,
    Symbols,
    read_tokenizer,
    write_language_tokenizer,
    write_translator_tokenizer,
)
from segue.interop.vocabulary import read_vocabulary
from segue.nn.deferred import blank
from segue.nn.fit import check_fit, check_size, too_large
from segue.nn.models import build_language_model, build_translator
from segue.text.special_tokens import special_tokens, text_vocab
from segue.text.tokenizer import ByteTokenizer

LANGUAGE, TRANSLATOR = "segue", "segue_seq2seq"
"""The `model_type` in config.json."""

TARGET = "target"
"""The folder inside with the target's tokenizer, where sources are cut by another: `subfolder="target"`."""

PREFIX = "model."
Config = TypeVar("Config", bound=Settings)
Shape = TypeVar("Shape", bound=VocabularyConfig)
Model = TypeVar("Model", bound=nn.Module)


def export_hf(model: Bundle | Translator | TextEncoder, target: Path) -> list[str]:
    """Write the folder; returns notes on what it cannot express."""
    with atomic_folder(target, SourceError) as folder:
        if isinstance(model, TextEncoder):
            return write_bert(model, folder)
        weights = {f"{PREFIX}{name}": tensor for name, tensor in model.model.state_dict().items()}
        write_tensors(folder / "model.safetensors", weights)
        if isinstance(model, Translator):
            return _describe_translator(model, folder)
        return _describe_language_model(model, folder)


def import_hf(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], *, vocab: Path | None = None
) -> Bundle | Translator:
    """The language model or translator of such a folder; `vocab` replaces a language model's tokenizer."""
    if config["model_type"] == TRANSLATOR:
        if vocab is not None:
            raise SourceError(
                f"the tokenizers of a translator are in its folder; leave out the vocabulary {vocab}"
            )
        return _import_translator(folder, config, weights)
    content = _content(BundleConfig, config)
    model = _built(content.model, build_language_model, weights, folder)
    size, tokenizer = content.model.vocab, None
    if vocab is not None:
        tokenizer = read_vocabulary(vocab, size)
    elif (folder / FILE).is_file():
        tokenizer = read_tokenizer(folder, size)
    return Bundle(model.eval(), content.reading, tokenizer)


def _describe_language_model(bundle: Bundle, folder: Path) -> list[str]:
    symbols, notes = Symbols(None, None), []
    if bundle.tokenizer is None:
        notes.append("the bundle has no tokenizer, so none is written")
    else:
        symbols = write_language_tokenizer(folder, bundle.tokenizer)
        if isinstance(bundle.tokenizer, ByteTokenizer) and bundle.tokenizer.size < 256:
            notes.append(
                f"the model knows {bundle.tokenizer.size} of 256 bytes; Hugging Face's tokenizer drops the others"
            )
    content = BundleConfig(model=bundle.model.config, reading=bundle.reading)
    ids = {"pad_token_id": symbols.padding, "eos_token_id": symbols.end}
    _write_config(folder, LANGUAGE, "SegueForCausalLM", content, ids)
    write_json(
        folder / "generation_config.json", {key: value for key, value in ids.items() if value is not None}
    )
    return notes


def _describe_translator(translator: Translator, folder: Path) -> list[str]:
    lower, source, target = translator.lower, translator.source, translator.target
    write_translator_tokenizer(folder, source, lower=lower)
    if translator.has_source_tokenizer:
        (folder / TARGET).mkdir()
        write_translator_tokenizer(folder / TARGET, target, lower=lower)
    content = TranslatorConfig(model=translator.model.config, translating=translator.translating, lower=lower)
    start, end = special_tokens(content.model.vocab)
    ids = {"decoder_start_token_id": start, "bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    _write_config(folder, TRANSLATOR, "SegueForSeq2SeqLM", content, {**ids, "is_encoder_decoder": True})
    search = {"num_beams": content.translating.beam_width, "max_new_tokens": content.translating.longest}
    write_json(folder / "generation_config.json", {**ids, **search, "bad_words_ids": [[start]]})
    if content.translating.beam_width == 1:
        return []
    return [
        f"Hugging Face's beam search divides by length, not by ((5 + length) / 6) ** {content.translating.penalty}: "
        "its translations may differ; with num_beams=1 they are the same"
    ]


def _write_config(folder: Path, kind: str, name: str, content: Settings, ids: Mapping[str, Any]) -> None:
    values = content.model_dump(mode="json", exclude={"format"})
    write_json(folder / "config.json", {"architectures": [name], "model_type": kind, **values, **ids})


def _import_translator(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Translator:
    content = _content(TranslatorConfig, config)
    model = _built(content.model, build_translator, weights, folder)
    if not (folder / FILE).is_file():
        raise SourceError(
            f"{folder} has no {FILE}, which a translator needs; save the tokenizer there too: "
            f"tokenizer.save_pretrained({str(folder)!r})"
        )
    vocab, source_vocab = content.model.vocab, content.model.source_vocab
    two = (folder / TARGET / FILE).is_file()
    if source_vocab and not two:
        raise SourceError(f"{folder} has no {TARGET}/{FILE}: its source has a vocabulary of its own")
    source = read_tokenizer(folder, text_vocab(source_vocab or vocab), translator=True, lower=content.lower)
    target = source
    if two:
        target = read_tokenizer(folder / TARGET, text_vocab(vocab), translator=True, lower=content.lower)
    for tokenizer, size in ((source, source_vocab or vocab), (target, vocab)):
        if tokenizer.size != text_vocab(size):
            raise SourceError(
                f"a tokenizer of {folder} has {tokenizer.size:,} symbols and its model {text_vocab(size):,}; "
                "do they belong together?"
            )
    return Translator(model.eval(), content.translating, source, target, content.lower)


def _content(kind: type[Config], config: Mapping[str, Any]) -> Config:
    """What a bundle's config.json would hold; the other keys are the library's."""
    return kind(**{key: config[key] for key in kind.model_fields if key != "format" and key in config})


def _built(
    shape: Shape, build: Callable[[Shape], Model], weights: Mapping[str, Tensor], folder: Path
) -> Model:
    """The model of this shape with these weights, after they were checked against it."""
    source = str(folder)
    ours = {name.removeprefix(PREFIX): weight for name, weight in weights.items()}
    if len(ours) < len(weights):
        twice = next(name for name in ours if f"{PREFIX}{name}" in weights and name in weights)
        raise SourceError(
            f"{folder} has two tensors for {twice}: with {PREFIX!r} before its name and without"
        )
    check_size(shape, ours, source, SourceError)
    with blank(), too_large(source, SourceError):
        model = build(shape)
    check_fit(ours, dict(model.state_dict()), source, SourceError)
    model.load_state_dict(ours, assign=True)
    return model
