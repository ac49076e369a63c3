"""Tokenizers: text to token ids and back. Text is bytes here; it is decoded to characters only for display.

Two kinds: `ByteTokenizer`, whose symbols are bytes, and `TextTokenizer`, anything that a `tokenizer.json` describes
(characters, words, BPE, or one from elsewhere). Both are saved as `tokenizer.json`.
"""

import codecs
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Encoding, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from segue.errors import InputError, SegueError, SourceError

EOS, UNK = "<eos>", "<unk>"

LINE_ENDS = (EOS, "<S>")
"""Symbols of words for the end of a line: of WikiText and Penn Treebank, and of the One Billion Word benchmark."""

END_OF_TEXT = (*LINE_ENDS, "<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]")
"""Names that tokenizers give to the end of a text."""

BLOCK_IDS = 2**16
"""Ids whose bytes are counted at once."""

MAX_IDS = 2**24
"""The largest vocabulary of a tokenizer: a table of all ids has to be in memory."""

PROBE = "".join(
    map(chr, (*range(0x800), *range(0x800, 0xD800, 0x800), *range(0xE000, 0x110000, 0x1000)))
).encode()
"""Text with every byte of UTF-8, both cases and all kinds of space: a tokenizer that loses text loses some of it."""

Ids = Sequence[int] | np.ndarray[Any, Any]

MAX_WAITING_IDS = 16
"""Ids that a decoder holds back at most while a character is incomplete."""


class Tokenizer(Protocol):
    """The interface of all tokenizers."""

    @property
    def size(self) -> int:
        """The number of ids."""

    def encode(self, text: bytes) -> Ids:
        """The ids of a text."""

    def spans(self, text: bytes) -> tuple[Ids, list[bytes]]:
        """The ids of a text, and the bytes that each stands for; joined, they are the text."""

    def decode(self, ids: Ids) -> bytes:
        """The text of ids."""

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        """(V,) Bytes that each id stands for, wherever it occurs."""

    def id_of(self, symbol: str) -> int | None:
        """The id of a special symbol such as `<eos>`; None if there is no such symbol."""

    @property
    def lossless(self) -> bool:
        """Whether decoding gives back every text that can be encoded."""

    def stream(self) -> "Decoder":
        """A streaming decoder."""

    def json(self) -> str:
        """The content of its `tokenizer.json`."""


class Decoder(Protocol):
    """A streaming decoder: takes ids one by one. `copy.copy` gives an independent one in the same state."""

    def __call__(self, number: int, /) -> str:
        """The text that this id completes; never a part of a character."""


class ByteTokenizer:
    """One id for each byte; or only for the bytes in `symbols`, in their order."""

    def __init__(self, symbols: bytes = bytes(range(256))) -> None:
        self.symbols = symbols
        self._bytes = symbols.ljust(256, b"\0")
        self._ids = np.full(256, -1, dtype=np.int16)
        self._ids[list(symbols)] = np.arange(len(symbols))

    @property
    def size(self) -> int:
        return len(self.symbols)

    def encode(self, text: bytes) -> np.ndarray[Any, Any]:
        ids = self._ids[np.frombuffer(text, dtype=np.uint8)]
        if self.size < 256 and (ids < 0).any():
            unknown = text[int((ids < 0).argmax())]
            raise InputError(
                f"byte {unknown} ({bytes([unknown])!r}) is not among the {self.size} known symbols"
            )
        return ids

    def spans(self, text: bytes) -> tuple[np.ndarray[Any, Any], list[bytes]]:
        return self.encode(text), [text[place : place + 1] for place in range(len(text))]

    def decode(self, ids: Ids) -> bytes:
        return np.asarray(ids).astype(np.uint8).tobytes().translate(self._bytes)

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        return np.ones(self.size, dtype=np.int64)

    def id_of(self, symbol: str) -> int | None:  # noqa: ARG002
        return None

    @property
    def lossless(self) -> bool:
        return True

    def stream(self) -> Decoder:
        return _ByteDecoder(self)

    def json(self) -> str:
        return json.dumps({"segue": "bytes", "symbols": list(self.symbols)}) + "\n"


class TextTokenizer:
    """The tokenizer that a `tokenizer.json` describes, for text in UTF-8."""

    def __init__(self, file: TokenizerFile) -> None:
        file.no_truncation()  # some published files truncate after 512 tokens
        file.no_padding()
        self._file = file
        self._size = max(file.get_vocab().values(), default=-1) + 1  # its ids may have gaps
        if self._size > MAX_IDS:
            raise SourceError(
                f"the tokenizer has an id of {self._size - 1:,}; ids should be below {MAX_IDS:,}"
            )
        words = isinstance(file.model, models.WordLevel)
        self._line_end = _line_end(file.get_vocab()) if words else None

    @property
    def size(self) -> int:
        return self._size

    def encode(self, text: bytes) -> Sequence[int]:
        ids: Sequence[int] = self._encoding(unicode(text)).ids
        return ids

    def spans(self, text: bytes) -> tuple[Sequence[int], list[bytes]]:
        """A space belongs to the token after it; a character of several tokens belongs to the first."""
        decoded = unicode(text)
        encoding = self._encoding(decoded)
        pieces, at = [], 0
        for _, end in encoding.offsets:
            pieces.append(decoded[at : max(at, end)].encode())
            at = max(at, end)
        if pieces:
            pieces[-1] += decoded[at:].encode()
        return encoding.ids, pieces

    def _encoding(self, text: str) -> Encoding:
        hint = f"); use one that knows {UNK}"
        with reporting_errors(InputError, "the tokenizer has no id for some of this text (", hint):
            return self._file.encode(text, add_special_tokens=False)

    def decode(self, ids: Ids) -> bytes:
        return self.lines(self.text(ids)).encode()

    @cached_property
    def sizes(self) -> np.ndarray[Any, Any]:
        """A symbol of byte-level BPE is written with one letter per byte, and may be part of a character."""
        letters = set(pre_tokenizers.ByteLevel.alphabet())
        byte_level = isinstance(self._file.decoder, decoders.ByteLevel)
        sizes = np.zeros(self._size, dtype=np.int64)
        for symbol, number in self._file.get_vocab().items():
            one_letter_per_byte = byte_level and letters.issuperset(symbol)
            sizes[number] = len(symbol) if one_letter_per_byte else len(self.decode([number]))
        return sizes

    def id_of(self, symbol: str) -> int | None:
        number: int | None = self._file.token_to_id(symbol)
        return number

    @cached_property
    def lossless(self) -> bool:
        try:
            return round_trips(self, np.array(self.encode(PROBE)), PROBE)
        except InputError:
            return False

    def stream(self) -> Decoder:
        return _TextDecoder(self)

    def text(self, ids: Ids) -> str:
        """The text of ids, as the decoder in the file gives it."""
        with reporting_errors(InputError, "the tokenizer cannot decode these ids: "):
            text: str = self._file.decode(np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=False)
        return text

    def lines(self, text: str) -> str:
        """The text with line feeds for `<eos>`, if the tokenizer is one of words that ends lines so."""
        end = self._line_end
        return text if end is None else text.replace(f" {end}", "\n").replace(end, "\n")

    def json(self) -> str:
        return str(self._file.to_str(pretty=False)) + "\n"


def start_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids to start generation from if there is no prompt: a newline, else an end of text, else id 0."""
    with suppress(InputError):
        newline = [int(number) for number in tokenizer.encode(b"\n")]
        if tokenizer.decode(newline) == b"\n":
            return newline
    known = (tokenizer.id_of(symbol) for symbol in END_OF_TEXT)
    return [next((number for number in known if number is not None), 0)]


class _ByteDecoder:
    """Decodes UTF-8; bytes that are no character become U+FFFD."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer, self._waiting = tokenizer, b""  # the first bytes of an incomplete character

    def __call__(self, number: int, /) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self._waiting + self._tokenizer.decode([number]))
        self._waiting = decoder.getstate()[0]
        return text


class _TextDecoder:
    """Gives the text that a new id adds to the text of the ids before it, because they decide about spaces between.

    A text that ends in U+FFFD may end in an incomplete character and is held back, for MAX_WAITING_IDS ids at most.
    (The library's DecodeStream does the same, but only its newest releases can copy it.)
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: tuple[int, ...] = ()
        self._waiting: tuple[int, ...] = ()

    def __call__(self, number: int, /) -> str:
        self._waiting = (*self._waiting, number)
        before = len(self._tokenizer.text(self._shown))
        text = self._tokenizer.text(self._shown + self._waiting)
        if (len(text) <= before or text.endswith("\ufffd")) and len(self._waiting) < MAX_WAITING_IDS:
            return ""
        self._shown, self._waiting = self._waiting, ()
        return self._tokenizer.lines(text[before:])


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, of segue or of the tokenizers library."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict) and values.get("segue") == "bytes":
            return ByteTokenizer(_distinct(bytes(list(values["symbols"]))))  # (bytes(5) would be five zeros)
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise SourceError(f"{path} is no tokenizer.json: {error}") from None
    with reporting_errors(SourceError, f"{path} is no tokenizer.json: "):
        return TextTokenizer(TokenizerFile.from_file(str(path)))


def _distinct(symbols: bytes) -> bytes:
    if not symbols or len(set(symbols)) < len(symbols):
        raise ValueError("its symbols should be distinct bytes, at least one")
    return symbols


@contextmanager
def reporting_errors(wrong: type[SegueError], what: str, hint: str = "") -> Iterator[None]:
    """Raise errors of the tokenizers library again in one line. It raises bare Exceptions, and panics."""
    try:
        yield
    except SegueError:
        raise
    except Exception as error:
        raise wrong(f"{what}{error}{hint}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # this class cannot be imported
            raise
        raise wrong(f"{what}{error}{hint}") from None


def digest(tokenizer: Tokenizer) -> str:
    """A checksum: the same for equal tokenizers."""
    return hashlib.sha256(tokenizer.json().encode()).hexdigest()


def bytes_of(tokenizer: Tokenizer, ids: np.ndarray[Any, Any]) -> int:
    """The number of bytes that the ids stand for. Counted in blocks, as the ids may be a large memory-mapped file."""
    sizes = tokenizer.sizes
    return sum(int(sizes[ids[begin : begin + BLOCK_IDS]].sum()) for begin in range(0, len(ids), BLOCK_IDS))


def round_trips(tokenizer: Tokenizer, ids: np.ndarray[Any, Any], text: bytes) -> bool:
    """Whether decoding the ids gives back the text, and their sizes add up to its size."""
    return bytes_of(tokenizer, ids) == len(text) and tokenizer.decode(ids) == text


def unicode(
    text: bytes, name: str = "this text", hint: str = "convert it, or use the bytes tokenizer"
) -> str:
    """Decode UTF-8; the error says where the text is not UTF-8."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        invalid = text[error.start : error.start + 4]
        raise InputError(
            f"{name} is not UTF-8: found {invalid!r} after {text[max(0, error.start - 20) : error.start]!r}; {hint}"
        ) from None


def word_tokenizer(symbols: Sequence[str], *, lower: bool = False) -> TextTokenizer:
    """A tokenizer of whole words; the id of a word is its index in `symbols`.

    The convention of WikiText: spaces separate words, a line ends in `<eos>`, an unknown word is `<unk>`; or of the
    One Billion Word benchmark: `<S>` and `<UNK>` (if the vocabulary has these symbols).
    """
    vocabulary = {symbol: place for place, symbol in enumerate(symbols)}
    if len(vocabulary) != len(symbols):
        twice = next(symbol for place, symbol in enumerate(symbols) if vocabulary[symbol] != place)
        raise SourceError(f"the vocabulary names {twice!r} twice; every symbol should have one line")
    unknown = next((name for name in (UNK, "<UNK>") if name in vocabulary), UNK)
    file = TokenizerFile(models.WordLevel(vocabulary, unk_token=unknown))
    line_end = _line_end(vocabulary)
    changes: list[Any] = [normalizers.Lowercase()] if lower else []
    if line_end is not None:
        changes.append(normalizers.Replace("\n", f" {line_end} "))
    if changes:
        file.normalizer = changes[0] if len(changes) == 1 else normalizers.Sequence(changes)
    file.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(file)


def _line_end(vocabulary: Mapping[str, int]) -> str | None:
    return next((symbol for symbol in LINE_ENDS if symbol in vocabulary), None)


def character_tokenizer(symbols: Sequence[str]) -> TextTokenizer:
    """A tokenizer of single characters; an unknown character is `<unk>`."""
    file = TokenizerFile(
        models.WordLevel({symbol: place for place, symbol in enumerate(symbols)}, unk_token=UNK)
    )
    file.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    file.decoder = decoders.Fuse()
    return TextTokenizer(file)
