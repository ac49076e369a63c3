"""Text to token ids and back. Text is bytes inside; it becomes characters only at the edges.

Two kinds: `ByteTokenizer`, whose symbols are bytes, and `TextTokenizer`, anything that a `tokenizer.json` describes
(characters, words, BPE, or somebody else's). Both are kept in a file of that name.
"""

import codecs
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Encoding, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from segue.errors import InputError, SegueError, SourceError

EOS, UNK = "<eos>", "<unk>"

END_OF_TEXT = (EOS, "<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]")
"""What tokenizers call the end of a text."""

BLOCK = 2**16
"""Ids that are looked at together."""

MOST = 2**24
"""Ids of a tokenizer; a table of all of them has to be in memory."""

PROBE = "".join(
    map(chr, (*range(0x800), *range(0x800, 0xD800, 0x800), *range(0xE000, 0x110000, 0x1000)))
).encode()
"""Every byte that UTF-8 has, both cases, and all kinds of blanks: what a tokenizer loses, it loses here."""

Ids = Sequence[int] | np.ndarray[Any, Any]

PATIENCE = 16
"""Ids that may wait for the end of a character."""


class Tokenizer(Protocol):
    """What every tokenizer answers to."""

    @property
    def size(self) -> int:
        """How many ids there are."""

    def encode(self, text: bytes) -> Ids:
        """The ids of a text."""

    def spans(self, text: bytes) -> tuple[Ids, list[bytes]]:
        """The ids of a text, and the stretch of it that each stands for; together they are the text."""

    def decode(self, ids: Ids) -> bytes:
        """The text of ids."""

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        """(V,) Bytes that each id stands for, wherever it occurs."""

    def id_of(self, symbol: str) -> int | None:
        """The id of a symbol that is not text but a sign, such as `<eos>`, if there is one."""

    @property
    def lossless(self) -> bool:
        """Whether every text that it takes comes back from its ids."""

    def stream(self) -> "Decoder":
        """A decoder for ids that come one by one."""

    def json(self) -> str:
        """What its file holds."""


class Decoder(Protocol):
    """Takes ids one by one. `copy.copy` gives another one that goes on from the same place."""

    def __call__(self, number: int, /) -> str:
        """The text that has become whole with this id: never half a character."""


class ByteTokenizer:
    """One id for each byte; with `symbols`, only for those, in their order."""

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
            stranger = text[int((ids < 0).argmax())]
            raise InputError(
                f"byte {stranger} ({bytes([stranger])!r}) is not among the {self.size} known symbols"
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
    """What a `tokenizer.json` describes, for text in UTF-8."""

    def __init__(self, file: TokenizerFile) -> None:
        file.no_truncation()  # others publish files that stop after 512 tokens
        file.no_padding()
        self._file = file
        self._size = max(file.get_vocab().values(), default=-1) + 1  # its ids may have gaps
        if self._size > MOST:
            raise SourceError(f"the tokenizer has an id of {self._size - 1:,}; ids should be below {MOST:,}")
        self._words = isinstance(file.model, models.WordLevel) and file.token_to_id(EOS) is not None

    @property
    def size(self) -> int:
        return self._size

    def encode(self, text: bytes) -> Sequence[int]:
        ids: Sequence[int] = self._encoding(unicode(text)).ids
        return ids

    def spans(self, text: bytes) -> tuple[Sequence[int], list[bytes]]:
        """Blanks belong to the token behind them; of tokens that share a character the first has it."""
        decoded = unicode(text)
        encoding = self._encoding(decoded)
        stretches, at = [], 0
        for _, end in encoding.offsets:
            stretches.append(decoded[at : max(at, end)].encode())
            at = max(at, end)
        if stretches:
            stretches[-1] += decoded[at:].encode()
        return encoding.ids, stretches

    def _encoding(self, text: str) -> Encoding:
        hint = f"); use one that knows {UNK}"
        with telling(InputError, "the tokenizer has no id for some of this text (", hint):
            return self._file.encode(text, add_special_tokens=False)

    def decode(self, ids: Ids) -> bytes:
        return self.lines(self.text(ids)).encode()

    @cached_property
    def sizes(self) -> np.ndarray[Any, Any]:
        """A symbol of byte-level BPE is spelled with one letter for each byte, and may be half a character."""
        letters = set(pre_tokenizers.ByteLevel.alphabet())
        spelled = isinstance(self._file.decoder, decoders.ByteLevel)
        sizes = np.zeros(self._size, dtype=np.int64)
        for symbol, number in self._file.get_vocab().items():
            whole = spelled and letters.issuperset(symbol)
            sizes[number] = len(symbol) if whole else len(self.decode([number]))
        return sizes

    def id_of(self, symbol: str) -> int | None:
        number: int | None = self._file.token_to_id(symbol)
        return number

    @cached_property
    def lossless(self) -> bool:
        try:
            return comes_back(self, np.array(self.encode(PROBE)), PROBE)
        except InputError:
            return False

    def stream(self) -> Decoder:
        return _TextDecoder(self)

    def text(self, ids: Ids) -> str:
        """The text of ids, as the file's own decoder gives it."""
        with telling(InputError, "the tokenizer cannot spell these ids: "):
            text: str = self._file.decode(np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=False)
        return text

    def lines(self, text: str) -> str:
        """The same where words end lines in `<eos>`: with line feeds."""
        return text.replace(f" {EOS}", "\n").replace(EOS, "\n") if self._words else text

    def json(self) -> str:
        return str(self._file.to_str(pretty=False)) + "\n"


def beginning(tokenizer: Tokenizer) -> list[int]:
    """Ids to begin with where there is no text: a newline, else the sign at a text's end, else the first id."""
    with suppress(InputError):
        newline = [int(number) for number in tokenizer.encode(b"\n")]
        if tokenizer.decode(newline) == b"\n":
            return newline
    known = (tokenizer.id_of(sign) for sign in END_OF_TEXT)
    return [next((number for number in known if number is not None), 0)]


class _ByteDecoder:
    """UTF-8; what can be no character is shown as U+FFFD."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer, self._waiting = tokenizer, b""  # the beginning of a character

    def __call__(self, number: int, /) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self._waiting + self._tokenizer.decode([number]))
        self._waiting = decoder.getstate()[0]
        return text


class _TextDecoder:
    """Text that new ids add to that of the ones before, which decide about blanks between them.

    A text that ends in U+FFFD may end in half a character and waits, but not for ever: models can say many such ids.
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
        if (len(text) <= before or text.endswith("\ufffd")) and len(self._waiting) < PATIENCE:
            return ""
        self._shown, self._waiting = self._waiting, ()
        return self._tokenizer.lines(text[before:])


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, ours or anybody's."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("segue") == "bytes":
            return ByteTokenizer(_different(bytes(list(found["symbols"]))))  # (bytes(5) would be five zeros)
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise SourceError(f"{path} is no tokenizer.json: {error}") from None
    with telling(SourceError, f"{path} is no tokenizer.json: "):
        return TextTokenizer(TokenizerFile.from_file(str(path)))


def _different(symbols: bytes) -> bytes:
    if not symbols or len(set(symbols)) < len(symbols):
        raise ValueError("its symbols should be different bytes, and one at least")
    return symbols


@contextmanager
def telling(wrong: type[SegueError], what: str, hint: str = "") -> Iterator[None]:
    """Tell what goes wrong in the tokenizers library in one line. It raises bare Exceptions, and panics."""
    try:
        yield
    except SegueError:
        raise
    except Exception as error:
        raise wrong(f"{what}{error}{hint}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which has no address that could be imported
            raise
        raise wrong(f"{what}{error}{hint}") from None


def digest(tokenizer: Tokenizer) -> str:
    """The same for equal tokenizers."""
    return hashlib.sha256(tokenizer.json().encode()).hexdigest()


def bytes_of(tokenizer: Tokenizer, ids: np.ndarray[Any, Any]) -> int:
    """How many bytes ids stand for. A block at a time: ids may be the whole of a memory-mapped file."""
    sizes = tokenizer.sizes
    return sum(int(sizes[ids[begin : begin + BLOCK]].sum()) for begin in range(0, len(ids), BLOCK))


def comes_back(tokenizer: Tokenizer, ids: np.ndarray[Any, Any], text: bytes) -> bool:
    """Whether nothing of a text is lost in its ids, neither as a whole nor token by token."""
    return bytes_of(tokenizer, ids) == len(text) and tokenizer.decode(ids) == text


def unicode(
    text: bytes, name: str = "this text", hint: str = "convert it, or use the bytes tokenizer"
) -> str:
    """UTF-8, or an error that says where it is not."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        found = text[error.start : error.start + 4]
        raise InputError(
            f"{name} is not UTF-8: found {found!r} after {text[max(0, error.start - 20) : error.start]!r}; {hint}"
        ) from None


def word_tokenizer(symbols: Sequence[str]) -> TextTokenizer:
    """A tokenizer of whole words, each with its place in `symbols` as its id.

    The convention of WikiText: words stand between blanks, a line ends in `<eos>`, what is unknown is `<unk>`
    (where the vocabulary has them).
    """
    vocabulary = {symbol: place for place, symbol in enumerate(symbols)}
    if len(vocabulary) != len(symbols):
        twice = next(symbol for place, symbol in enumerate(symbols) if vocabulary[symbol] != place)
        raise SourceError(f"the vocabulary names {twice!r} twice; every symbol should have one line")
    unknown = next((name for name in (UNK, "<UNK>") if name in vocabulary), UNK)
    file = TokenizerFile(models.WordLevel(vocabulary, unk_token=unknown))
    if EOS in vocabulary:
        file.normalizer = normalizers.Replace("\n", f" {EOS} ")
    file.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(file)


def character_tokenizer(symbols: Sequence[str]) -> TextTokenizer:
    """A tokenizer of single characters; `<unk>` for those that it does not know."""
    file = TokenizerFile(
        models.WordLevel({symbol: place for place, symbol in enumerate(symbols)}, unk_token=UNK)
    )
    file.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    file.decoder = decoders.Fuse()
    return TextTokenizer(file)
