"""Tokenizers as `AutoTokenizer` of Hugging Face opens them, and back.

A byte tokenizer is a BPE without merges there. Padding, and the start and end of a translator's sentences, are symbols
behind the vocabulary: they have ids, and no text ever becomes one of them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as TokenizerFile

from segue.checkpoint import write_json
from segue.errors import SourceError
from segue.text.parsing import read_object
from segue.text.tokenizer import END_OF_TEXT, LINE_ENDS, ByteTokenizer, TextTokenizer, Tokenizer

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
PADDING = ("<pad>", "[PAD]", "<|padding|>")
"""Names that vocabularies have for padding; the first is added if there is none."""


@dataclass(frozen=True)
class Symbols:
    """Ids of the symbols that Hugging Face asks for; None where there is no such symbol."""

    padding: int | None
    end: int | None


def write_language_tokenizer(folder: Path, tokenizer: Tokenizer) -> Symbols:
    """Write the tokenizer of a language model. Texts are padded on the left, so that generation goes on from them."""
    file = _as_file(tokenizer)
    known = file.get_vocab()
    padding = next((name for name in PADDING if name in known), PADDING[0])
    end = next((name for name in END_OF_TEXT if name in known and name not in LINE_ENDS), None)
    named = {"pad_token": padding} | ({} if end is None else {"eos_token": end})
    _add(file, [padding], known.get(padding, tokenizer.size))
    _write(folder, file, named | {"padding_side": "left"})
    return Symbols(file.token_to_id(padding), None if end is None else known[end])


def write_translator_tokenizer(folder: Path, tokenizer: Tokenizer, *, lower: bool) -> None:
    """Write the tokenizer of one side of a translator: an end follows every sentence, and pads it too."""
    file = _as_file(tokenizer)
    start, end = (_unused(name, file) for name in ("<s>", "</s>"))
    _add(file, [start, end], tokenizer.size)
    file.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.size + 1)]
    )
    if lower:
        known = [] if file.normalizer is None else [file.normalizer]
        file.normalizer = normalizers.Sequence([normalizers.Lowercase(), *known])
    _write(folder, file, {"bos_token": start, "eos_token": end, "pad_token": end, "padding_side": "right"})


def read_tokenizer(folder: Path, vocab: int, *, translator: bool = False, lower: bool = False) -> Tokenizer:
    """The tokenizer of such a folder as it was before it was written, with ids below `vocab`."""
    path = folder / FILE
    values = read_object(path)
    added = values.get("added_tokens") or []
    try:
        values["added_tokens"] = [one for one in added if one["id"] < vocab or not one["special"]]
    except (TypeError, KeyError):
        raise SourceError(
            f"{path}: its added_tokens should have an id and say whether they are special"
        ) from None
    behind = values.get("post_processor")
    if translator or (
        isinstance(behind, dict) and behind.get("special_tokens") == {}
    ):  # the library adds one
        values["post_processor"] = None
    if lower:
        values["normalizer"] = _without_lowercase(values.get("normalizer"), path)
    symbols = _byte_symbols(values)
    if symbols is not None:
        return ByteTokenizer(symbols)
    try:
        tokenizer = TextTokenizer(TokenizerFile.from_str(json.dumps(values)))
    except SourceError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise SourceError(f"{path} is no tokenizer.json: {error}") from None
    if tokenizer.size > vocab:
        raise SourceError(
            f"{path} has {tokenizer.size:,} symbols and its model {vocab:,}; do they belong together?"
        )
    return tokenizer


def _as_file(tokenizer: Tokenizer) -> TokenizerFile:
    if not isinstance(tokenizer, ByteTokenizer):
        return TokenizerFile.from_str(tokenizer.json())
    letters = byte_letters()
    file = TokenizerFile(
        models.BPE({letters[byte]: place for place, byte in enumerate(tokenizer.symbols)}, [])
    )
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    file.decoder = decoders.ByteLevel()
    return file


def _byte_symbols(values: dict[str, Any]) -> bytes | None:
    """The bytes of a vocabulary in their order, if this is the file of a byte tokenizer."""
    model, cut = values.get("model"), values.get("pre_tokenizer")
    if not isinstance(model, dict) or not isinstance(cut, dict):
        return None
    if cut.get("type") != "ByteLevel" or cut.get("use_regex", True) or model.get("merges") != []:
        return None
    if model.get("type", "BPE") != "BPE" or values.get("normalizer") is not None:
        return None  # it does more than that, or something else
    places, numbers = model.get("vocab", {}), {letter: byte for byte, letter in byte_letters().items()}
    if not isinstance(places, dict) or not places or not places.keys() <= numbers.keys():
        return None
    if set(places.values()) != set(range(len(places))):
        return None
    return bytes(numbers[letter] for letter in sorted(places, key=places.__getitem__))


def byte_letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte: itself if it prints, else one from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in printing else next(others)) for byte in range(256)}


def _unused(name: str, file: TokenizerFile) -> str:
    """The name, in more brackets where the vocabulary has such a symbol."""
    while file.token_to_id(name) is not None:
        name = f"<{name}>"
    return name


def _add(file: TokenizerFile, names: Sequence[str], first: int) -> None:
    """Make these special symbols, with ids from `first` on."""
    file.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    for wanted, name in enumerate(names, start=first):
        if file.token_to_id(name) != wanted:
            raise SourceError(
                f"the ids of this tokenizer have gaps: {name} would get {file.token_to_id(name)} and not {wanted}, "
                "so Hugging Face's library cannot hold it"
            )


def _write(folder: Path, file: TokenizerFile, named: dict[str, Any]) -> None:
    (folder / FILE).write_text(file.to_str(pretty=False) + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # a text that spells "<pad>" is text
        **named,
    }
    write_json(folder / SETTINGS, settings)


def _without_lowercase(normalizer: Any, path: Path) -> Any:
    """The normalizer without the Lowercase that was put before it."""
    steps = normalizer.get("normalizers") if isinstance(normalizer, dict) else None
    if not isinstance(steps, list) or not steps or steps[0] != {"type": "Lowercase"}:
        raise SourceError(f"{path}: its config says lower, and its normalizer does not begin with Lowercase")
    rest = steps[1:]
    return None if not rest else rest[0] if len(rest) == 1 else {"type": "Sequence", "normalizers": rest}
