"""Models of sentencepiece (Unigram), converted into a `tokenizer.json`: nothing needs the library itself.

A translator's vocabulary and its sentencepiece model are two lists: a piece of the model that the vocabulary lacks is
unknown, and a symbol of the vocabulary that the model lacks is never made by it. The tokenizer has ids for both.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from segue.errors import SourceError
from segue.interop.protobuf import fields
from segue.text.tokenizer import TextTokenizer, reporting_errors

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM = 1

NEVER = "\uf8ff"
"""Stands before a symbol that text is never cut into, so that no text matches it; decoding takes it away."""


@dataclass(frozen=True)
class Pieces:
    """A sentencepiece model: the scores of its pieces, and how text is normalized."""

    scores: dict[str, float]
    charsmap: bytes
    dummy_prefix: bool = True
    collapse_blanks: bool = True


def read_pieces(path: Path) -> Pieces:
    """A sentencepiece model; only Unigram ones without pieces for bytes are known."""
    try:
        message = list(fields(path.read_bytes()))
        trainer = {n: value for number, part in message if number == 2 for n, value in fields(_bytes(part))}
        rules = {n: value for number, part in message if number == 3 for n, value in fields(_bytes(part))}
        pieces = [_piece(_bytes(part)) for number, part in message if number == 1]
        charsmap = _bytes(rules.get(2, b""))
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror}") from None
    except (IndexError, ValueError, struct.error) as error:
        raise SourceError(f"{path} is no model of sentencepiece: {error}") from None
    if trainer.get(3, UNIGRAM) != UNIGRAM or any(kind == BYTE for _, _, kind in pieces):
        raise SourceError(f"{path} is not a plain Unigram model of sentencepiece; no other kind is known")
    scores = {text: score for text, score, kind in pieces if kind in (NORMAL, USER_DEFINED)}
    if not scores:
        raise SourceError(f"{path} is no model of sentencepiece: it has no pieces")
    return Pieces(scores, charsmap, bool(rules.get(3, 1)), bool(rules.get(4, 1)))


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text should be")
    return value


def _piece(message: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in fields(message):
        if number == 1:
            text = _bytes(value).decode()
        elif number == 2 and isinstance(value, int):
            (score,) = struct.unpack("<f", struct.pack("<I", value))
        elif number == 3 and isinstance(value, int):
            kind = value
    return text, score, kind


def piece_tokenizer(symbols: Sequence[str], unknown: int, pieces: Pieces) -> TextTokenizer:
    """The tokenizer whose ids are the places of `symbols`, cutting text as the sentencepiece model does.

    A character that the model does not know is itself a piece, as in sentencepiece, if the vocabulary has it.
    """
    if len(set(symbols)) < len(symbols):
        raise SourceError("the vocabulary names a symbol twice; every symbol should have one id")
    least = min(pieces.scores.values())
    codes = [text for text in symbols if text.startswith(">>") and text.endswith("<<")]  # of target languages
    matched = {*pieces.scores, *codes}
    vocabulary = [
        (text if text in matched or len(text) == 1 else NEVER + text, pieces.scores.get(text, least))
        for text in symbols
    ]
    with reporting_errors(SourceError, "the pieces of sentencepiece make no tokenizer: "):
        vocabulary[unknown] = (symbols[unknown], 0.0)
        file = TokenizerFile(models.Unigram(vocabulary, unk_id=unknown))
        steps: list[Any] = [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []
        if pieces.collapse_blanks:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        file.normalizer = normalizers.Sequence(steps)
        scheme = "always" if pieces.dummy_prefix else "never"
        file.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        file.decoder = decoders.Sequence(
            [decoders.Replace(NEVER, ""), decoders.Metaspace(prepend_scheme=scheme)]
        )
        file.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return TextTokenizer(file)
