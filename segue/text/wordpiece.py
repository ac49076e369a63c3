"""WordPiece: texts and pairs of texts as input of BERT, `[CLS] first [SEP] second [SEP]`, padded and truncated."""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as TokenizerFile

from segue.errors import InputError, SourceError
from segue.text.tokenizer import MAX_IDS, reporting_errors

CLS, SEP, PAD, UNKNOWN, MASK = "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"
SPECIAL = (PAD, UNKNOWN, CLS, SEP, MASK)
"""BERT's special symbols, in the order of their ids in a new vocabulary."""

Text = str | tuple[str, str]


class Padded(NamedTuple):
    """A batch under BERT's usual names; int64, (B, S)."""

    input_ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray
    truncated: int  # the number of texts that were too long


class Pieces(NamedTuple):
    """One text or pair, with its [CLS] and [SEP]."""

    ids: list[int]
    types: list[int]  # 0, and 1 for the second text of a pair
    truncated: bool


class PlacedPieces(NamedTuple):
    """A text without [CLS] and [SEP], and where its pieces come from."""

    ids: list[int]
    places: list[tuple[int, int]]  # the characters of each piece: from, and up to
    words: list[int]  # of a text in words: the word of each piece


class WordPiece:
    """A WordPiece tokenizer that adds [CLS] and [SEP]."""

    def __init__(self, file: TokenizerFile) -> None:
        file.no_padding()  # published files pad and truncate as they like
        file.no_truncation()
        self.file = file
        self.size = max(file.get_vocab().values(), default=-1) + 1  # its ids may have gaps
        self._truncating = threading.Lock()

    def pieces(self, texts: Sequence[Text], max_length: int) -> list[Pieces]:
        """Each text or pair, truncated to `max_length` tokens; of a pair, the longer text first."""
        with reporting_errors(InputError, "the tokenizer cannot read this text: "), self._truncating:
            encoded: list[Encoding] = self.file.encode_batch(list(texts))
            long = [place for place, one in enumerate(encoded) if len(one.ids) > max_length]
            if long:
                self.file.enable_truncation(max_length)
                try:
                    shorter = self.file.encode_batch([texts[place] for place in long])
                finally:
                    self.file.no_truncation()
                for place, one in zip(long, shorter, strict=True):
                    encoded[place] = one
        cut = set(long)
        return [Pieces(one.ids, one.type_ids, place in cut) for place, one in enumerate(encoded)]

    def placed(self, texts: Sequence[str] | Sequence[Sequence[str]]) -> list[PlacedPieces]:
        """Each text, whole; a text is a string or a list of words. A word of strange characters may have no piece."""
        split = [not isinstance(text, str) for text in texts]
        inputs = [list(text) if cut else text for text, cut in zip(texts, split, strict=True)]
        with reporting_errors(InputError, "the tokenizer cannot read this text: "), self._truncating:
            encoded: list[Encoding] = self.file.encode_batch(
                inputs, is_pretokenized=any(split), add_special_tokens=False
            )
        return [
            PlacedPieces(one.ids, one.offsets, [-1 if word is None else word for word in one.word_ids])
            for one in encoded
        ]

    @property
    def around(self) -> tuple[int, int]:
        """The ids of [CLS] and [SEP], which stand around every text."""
        cls, sep = self.file.token_to_id(CLS), self.file.token_to_id(SEP)
        assert cls is not None and sep is not None, "read_wordpiece has looked for them"  # noqa: PT018
        return cls, sep

    def encode(self, texts: Sequence[Text], max_length: int) -> Padded:
        """A batch of texts or pairs, padded to the longest of them."""
        if not texts:
            raise InputError("there are no texts to encode")
        pieces = self.pieces(texts, max_length)
        size = max(len(one.ids) for one in pieces)
        ids = np.full((len(pieces), size), self.padding, dtype=np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for row, one in enumerate(pieces):
            ids[row, : len(one.ids)], types[row, : len(one.ids)] = one.ids, one.types
            mask[row, : len(one.ids)] = 1
        return Padded(ids, mask, types, sum(one.truncated for one in pieces))

    @property
    def padding(self) -> int:
        """The id of [PAD], or 0."""
        return self.file.token_to_id(PAD) or 0

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces as they are written in the vocabulary."""
        return [self.file.id_to_token(int(one)) or "" for one in ids]

    def json(self) -> str:
        """The content of its `tokenizer.json`."""
        return str(self.file.to_str(pretty=False)) + "\n"


def read_wordpiece(path: Path | str, *, lower: bool = True) -> WordPiece:
    """Read a `tokenizer.json`, or a `vocab.txt` with one piece per line, whose text is made lower-case or not."""
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    with reporting_errors(SourceError, f"{path} is no tokenizer.json: "):
        file = TokenizerFile.from_file(str(path)) if path.suffix == ".json" else _from_pieces(path, lower)
    missing = [token for token in (CLS, SEP) if file.token_to_id(token) is None]
    if missing:
        raise SourceError(
            f"{path} does not know {' and '.join(missing)}; it is no WordPiece vocabulary of BERT's kind"
        )
    wordpiece = WordPiece(file)
    if wordpiece.size > MAX_IDS:
        raise SourceError(f"{path} has an id of {wordpiece.size - 1:,}; ids should be below {MAX_IDS:,}")
    return wordpiece


def _from_pieces(path: Path, lower: bool) -> TokenizerFile:
    pieces = path.read_text(encoding="utf-8").splitlines()
    places = {piece: place for place, piece in enumerate(pieces)}
    missing = [token for token in (CLS, SEP, UNKNOWN) if token not in places]
    if missing:
        raise SourceError(f"{path} lacks {', '.join(missing)}; it is no WordPiece vocabulary of BERT's kind")
    return as_bert(TokenizerFile(models.WordPiece(places, unk_token=UNKNOWN)), lower=lower)


def as_bert(file: TokenizerFile, *, lower: bool) -> TokenizerFile:
    """The tokenizer with all that BERT does besides cutting words in pieces; it has [CLS], [SEP] and [UNK]."""
    file.add_special_tokens([token for token in SPECIAL if token in file.get_vocab()])
    file.normalizer = normalizers.BertNormalizer(lowercase=lower)
    file.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    file.decoder = decoders.WordPiece()
    ids = file.get_vocab()
    file.post_processor = processors.BertProcessing((SEP, ids[SEP]), (CLS, ids[CLS]))
    return file
