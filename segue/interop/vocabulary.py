"""Vocabularies of published Transformer-XLs: text with a symbol per line, or pickles, of which nothing is executed.

Their conventions: words between blanks; the end of a line is `<eos>`, or in One Billion Word two `<S>`; enwik8's
symbols are the numbers of bytes; text8's are letters, and `_` for the blank.
"""

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segue.errors import SourceError
from segue.interop.pickled import read_pickle
from segue.text.tokenizer import ByteTokenizer, Tokenizer, character_tokenizer, word_tokenizer

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin")
BESIDE = ("vocab.txt", "vocab.pkl", "vocab.bin", "cache.pkl")
"""Names of vocabularies in the folders of published models; the authors' own is in `data`, beside `model`."""

HOW_TO_LIST = "write it as text, one symbol per line in the order of ids, and pass that file with --vocab"


@dataclass(frozen=True)
class Vocabulary:
    """Symbols in the order of ids, and how text is cut into them."""

    symbols: list[str]
    lower: bool = False
    characters: bool = False

    def tokenizer(self) -> Tokenizer:
        distinct = set(self.symbols)
        if len(distinct) == len(self.symbols):
            if all(symbol.isdecimal() and len(symbol) < 4 and int(symbol) < 256 for symbol in distinct):
                return ByteTokenizer(bytes(map(int, self.symbols)))
            if distinct == {*string.ascii_lowercase, "_"}:
                return ByteTokenizer("".join(self.symbols).replace("_", " ").encode())
        return (
            character_tokenizer(self.symbols)
            if self.characters
            else word_tokenizer(self.symbols, lower=self.lower)
        )


def read_vocabulary(path: Path, size: int) -> Tokenizer:
    """The tokenizer of a vocabulary of `size` symbols: a text with one symbol per line, or a pickle."""
    vocabulary = _unpickled(path) if path.suffix in PICKLES else Vocabulary(_listed(path))
    if len(vocabulary.symbols) != size:
        raise SourceError(
            f"{path} has {len(vocabulary.symbols)} symbols and the model has {size}; is it the model's vocabulary?"
        )
    for symbol in vocabulary.symbols:
        if any("\ud800" <= letter <= "\udfff" for letter in symbol):
            raise SourceError(f"{path} has a symbol that is no text: {symbol!r}; {HOW_TO_LIST}")
    return vocabulary.tokenizer()


def beside(source: Path) -> Path | None:
    """The vocabulary that lies in the folder of a model, if there is one."""
    folder = source if source.is_dir() else source.parent
    places = (*(folder / name for name in BESIDE), folder.parent / "data" / "cache.pkl")
    return next((place for place in places if place.is_file()), None)


def _listed(path: Path) -> list[str]:
    """The first field of each line; a count may follow it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise SourceError(f"{path} is not UTF-8 text, perhaps a pickle; {HOW_TO_LIST}") from None
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror}") from None
    return [line.split()[0] for line in lines if line.strip()]


def _unpickled(path: Path) -> Vocabulary:
    """The vocabulary in a pickled corpus of the authors, or among the attributes of Hugging Face's tokenizer."""
    try:
        value = read_pickle(path)
    except SourceError as error:
        raise SourceError(f"{error}; {HOW_TO_LIST}") from None
    value = value.get("vocab", value) if isinstance(value, dict) else value
    attributes: dict[str, Any] = value if isinstance(value, dict) else {}
    symbols = attributes.get("idx2sym")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise SourceError(f"{path} has no list of symbols (idx2sym); {HOW_TO_LIST}")
    return Vocabulary(
        symbols,
        lower=attributes.get("lower_case") is True,
        characters=attributes.get("delimiter") == "",
    )
