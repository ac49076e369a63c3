"""WordPiece: texts and pairs of texts as input of BERT, `[CLS] first [SEP] second [SEP]`, padded and truncated."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as TokenizerFile

from segue.errors import InputError, SourceError

CLS, SEP, PAD, UNKNOWN = "[CLS]", "[SEP]", "[PAD]", "[UNK]"

Text = str | tuple[str, str]


class Padded(NamedTuple):
    """A batch under BERT's usual names; int64, (B, S)."""

    input_ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray
    truncated: int  # the number of texts that were too long


@dataclass(frozen=True, eq=False)
class WordPiece:
    """A WordPiece tokenizer that adds [CLS] and [SEP]."""

    file: TokenizerFile

    def encode(self, texts: Sequence[Text], max_length: int) -> Padded:
        """A batch of texts or pairs. Each is truncated to `max_length` tokens; of a pair, the longer text first."""
        if not texts:
            raise InputError("there are no texts to encode")
        self.file.no_padding()
        self.file.no_truncation()
        untruncated = self.file.encode_batch(list(texts))
        self.file.enable_truncation(max_length)
        truncated: list[Encoding] = self.file.encode_batch(list(texts))
        self.file.no_truncation()
        size = max(len(one.ids) for one in truncated)
        filler = self.file.token_to_id(PAD) or 0
        rows = [(one.ids, one.attention_mask, one.type_ids) for one in truncated]
        ids, mask, types = (
            np.array([[*row[part], *[blank] * (size - len(row[part]))] for row in rows], dtype=np.int64)
            for part, blank in ((0, filler), (1, 0), (2, 0))
        )
        return Padded(ids, mask, types, sum(len(one.ids) > max_length for one in untruncated))


def read_wordpiece(path: Path | str) -> WordPiece:
    """Read a `tokenizer.json`, or a `vocab.txt` with one piece per line, which is taken to be lower-case."""
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    try:
        file = TokenizerFile.from_file(str(path)) if path.suffix == ".json" else _from_pieces(path)
    except SourceError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise SourceError(f"{path} is no tokenizer.json: {error}") from None
    missing = [token for token in (CLS, SEP) if file.token_to_id(token) is None]
    if missing:
        raise SourceError(
            f"{path} does not know {' and '.join(missing)}; it is no WordPiece vocabulary of BERT's kind"
        )
    return WordPiece(file)


def _from_pieces(path: Path) -> TokenizerFile:
    pieces = path.read_text(encoding="utf-8").splitlines()
    places = {piece: place for place, piece in enumerate(pieces)}
    missing = [token for token in (CLS, SEP, UNKNOWN) if token not in places]
    if missing:
        raise SourceError(f"{path} lacks {', '.join(missing)}; it is no WordPiece vocabulary of BERT's kind")
    file = TokenizerFile(models.WordPiece(places, unk_token=UNKNOWN))
    file.normalizer = normalizers.BertNormalizer(lowercase=True)
    file.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    file.decoder = decoders.WordPiece()
    file.post_processor = processors.BertProcessing((SEP, places[SEP]), (CLS, places[CLS]))
    return file
