"""Tokenizers learned from text: words, words of sentences, characters, byte-level BPE, and WordPiece."""

from collections.abc import Iterable, Iterator

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as TokenizerFile

from segue.errors import InputError
from segue.text.sources import WordConvention
from segue.text.tokenizer import UNK, TextTokenizer, character_tokenizer, unicode, word_tokenizer
from segue.text.wordpiece import SPECIAL, UNKNOWN, as_bert

WIKITEXT = WordConvention()
"""Words as WikiText has them: `<eos>` ends a line, `<unk>` is an unknown word."""

WORD_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2, and `ByteLevel` after it, cut a text into words."""

MAX_WORD_CHARACTERS = 512
"""BPE learns from longer words in pieces."""


MAX_ALPHABET = 1000
"""Characters of a WordPiece vocabulary, as in the tokenizers library's own for BERT."""

MAX_WORDPIECE_CHARACTERS = 100
"""A longer word is unknown to WordPiece; its trainer sees it in pieces."""


def train_words(texts: Iterable[bytes], minimum: int, convention: WordConvention = WIKITEXT) -> TextTokenizer:
    """`<eos>`, `<unk>`, then the words that occur at least `minimum` times, the most frequent first."""
    counts: dict[str, int] = {}
    words = pre_tokenizers.WhitespaceSplit()  # as the tokenizer does; `str.split` knows other kinds of space
    for text in texts:
        for line in unicode(text).split("\n"):  # it is faster on short texts
            for word, _ in words.pre_tokenize_str(line):
                counts[word] = counts.get(word, 0) + 1
    special = [convention.boundary, convention.unknown]
    known = [word for word, count in counts.items() if count >= minimum and word not in special]
    return word_tokenizer([*special, *sorted(known, key=lambda word: (-counts[word], word))])


def train_sentence_words(texts: Iterable[bytes], size: int, minimum: int) -> TextTokenizer:
    """`<unk>`, then the words and punctuation marks of sentences, the most frequent first, `size` symbols at most.

    A symbol keeps the blank before it, as in byte-level BPE, so that text comes back as it was written: ` sea`, `.`
    """
    file = TokenizerFile(models.WordLevel({UNK: 0}, unk_token=UNK))
    file.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend(" ")]
    )
    file.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")
    file.decoder = decoders.Sequence(
        [decoders.Replace(UNK, f" {UNK}"), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    counts: dict[str, int] = {}
    for text in texts:
        for word, _ in file.pre_tokenizer.pre_tokenize_str(file.normalizer.normalize_str(unicode(text))):
            counts[word] = counts.get(word, 0) + 1
    known = sorted(
        (word for word, count in counts.items() if count >= minimum), key=lambda word: (-counts[word], word)
    )
    symbols = [UNK, *known[: size - 1]]
    file.model = models.WordLevel({symbol: place for place, symbol in enumerate(symbols)}, unk_token=UNK)
    return TextTokenizer(file)


def train_characters(texts: Iterable[bytes], minimum: int) -> TextTokenizer:
    """`<unk>`, then the characters that occur at least `minimum` times, the most frequent first."""
    counts: dict[str, int] = {}
    for text in texts:
        decoded = unicode(text)
        for character in set(decoded):
            counts[character] = counts.get(character, 0) + decoded.count(character)
    known = [character for character, count in counts.items() if count >= minimum]
    return character_tokenizer([UNK, *sorted(known, key=lambda character: (-counts[character], character))])


def train_bpe(texts: Iterable[bytes], size: int) -> TextTokenizer:
    """Byte-level BPE of `size` symbols: every byte is one, so nothing is unknown."""
    if size < 257:
        raise InputError(
            f"BPE needs at least 257 symbols, since every byte is one; found a vocabulary of {size}"
        )
    file = TokenizerFile(models.BPE())
    file.pre_tokenizer = _short_words()
    file.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    file.train_from_iterator(_lines(texts), trainer)
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return TextTokenizer(file)


def train_wordpiece(texts: Iterable[bytes], size: int, *, lower: bool) -> TextTokenizer:
    """WordPiece of at most `size` symbols, BERT's special ones first; with `lower`, capitals and accents are dropped.

    The library's trainer merges the most frequent pair, as BPE does, not the pair that is the likeliest beside its
    parts; a text is then cut as BERT does it, by the longest match. Rare characters are unknown: the MAX_ALPHABET most
    frequent ones are kept, and at most a quarter of the symbols.
    """
    fewest = len(SPECIAL) + 8
    if size < fewest:
        raise InputError(f"WordPiece needs at least {fewest} symbols; found a vocabulary of {size}")
    file = as_bert(_only_special(), lower=lower)
    file.pre_tokenizer = pre_tokenizers.Sequence(
        [
            file.pre_tokenizer,
            pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{MAX_WORDPIECE_CHARACTERS}}}"), "isolated"),
        ]
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        limit_alphabet=min(MAX_ALPHABET, size // 4),
        show_progress=False,
    )
    file.train_from_iterator(_lines(texts), trainer)
    return TextTokenizer(as_bert(file, lower=lower))


def _only_special() -> TokenizerFile:
    return TokenizerFile(
        models.WordPiece({symbol: place for place, symbol in enumerate(SPECIAL)}, unk_token=UNKNOWN)
    )


def _short_words() -> pre_tokenizers.PreTokenizer:
    """Cut text into the words of `ByteLevel`, and longer words at MAX_WORD_CHARACTERS.

    For training only: each merge scans whole words, so the time would grow with the square of a text without spaces.
    Encoding does not need it.
    """
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{MAX_WORD_CHARACTERS}}}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _lines(texts: Iterable[bytes]) -> Iterator[str]:
    for text in texts:
        yield from unicode(text).splitlines(keepends=True)
