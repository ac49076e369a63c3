"""A tokenizer of each kind, and texts for them."""

from functools import cache

from hypothesis import strategies as st

from segue.text.learn import train_bpe, train_characters, train_words
from segue.text.tokenizer import ByteTokenizer, TextTokenizer, Tokenizer

WORLD = "the café on the Straße – 東京 👩‍👩‍👧 the\r\n\tthe café\n\n"
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"))
"""Without the sign that stands for half a character, so that it betrays one."""


@cache
def tiny_bpe() -> TextTokenizer:
    return train_bpe([WORLD.encode() * 3], 280)


def each_kind(text: str = WORLD) -> dict[str, Tokenizer]:
    return {
        "bytes": ByteTokenizer(),
        "some bytes": ByteTokenizer(b"abc \n"),
        "characters": train_characters([text.encode()], 1),
        "words": train_words([text.encode()], 1),
        "bpe": tiny_bpe(),
    }
