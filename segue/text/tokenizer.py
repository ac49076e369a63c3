"""Text to token ids and back."""

from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from segue.errors import SourceError


def word_tokenizer(symbols: Sequence[str]) -> Tokenizer:
    """A tokenizer of whole words, each with its place in `symbols` as its id.

    The convention of WikiText: words stand between blanks, a line ends in `<eos>`, what is unknown is `<unk>`
    (where the vocabulary has them).
    """
    vocabulary = {symbol: place for place, symbol in enumerate(symbols)}
    if len(vocabulary) != len(symbols):
        twice = next(symbol for place, symbol in enumerate(symbols) if vocabulary[symbol] != place)
        raise SourceError(f"the vocabulary names {twice!r} twice; every symbol should have one line")
    unknown = next((name for name in ("<unk>", "<UNK>") if name in vocabulary), None)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown or "<unk>"))
    if "<eos>" in vocabulary:
        tokenizer.normalizer = normalizers.Replace("\n", " <eos> ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
