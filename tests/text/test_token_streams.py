"""Ids become text one at a time: whole characters, no waiting for ever, and streams that keep apart."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.text.learn import train_words
from segue.text.tokenizer import ByteTokenizer
from tokenizers_of_texts import TEXTS, each_kind, tiny_bpe


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
@given(text=TEXTS)
def test_a_stream_gives_whole_characters_that_join_to_the_text(kind: str, text: str) -> None:
    tokenizer = each_kind(text)[kind]
    decode = tokenizer.stream()
    parts = [decode(int(number)) for number in tokenizer.encode(text.encode())]
    assert "\ufffd" not in "".join(parts)
    assert "".join(parts) == text


def test_a_stream_waits_for_the_rest_of_a_character() -> None:
    decode = ByteTokenizer().stream()
    assert [decode(byte) for byte in "a東b".encode()] == ["a", "", "", "東", "b"]
    decode = tiny_bpe().stream()
    parts = [decode(number) for number in tiny_bpe().encode("😀!".encode())]
    assert [part for part in parts if part] == ["😀", "!"]


def test_two_streams_keep_apart() -> None:
    first, second = ByteTokenizer().stream(), ByteTokenizer().stream()
    assert [first(0xC3), second(0x61), first(0xA4)] == ["", "a", "ä"]


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
@given(text=TEXTS, other=TEXTS, data=st.data())
def test_a_copied_stream_goes_on_from_the_same_place(
    kind: str, text: str, other: str, data: st.DataObject
) -> None:
    tokenizer = each_kind(text + other)[kind]
    ids = [int(number) for number in tokenizer.encode(text.encode())]
    cut, decode = data.draw(st.integers(0, len(ids))), tokenizer.stream()
    begun = "".join(map(decode, ids[:cut]))
    twin = copy.copy(decode)
    for number in tokenizer.encode(other.encode()):
        twin(int(number))
    assert begun + "".join(map(decode, ids[cut:])) == text


def test_halves_of_characters_do_not_wait_for_ever() -> None:
    tokenizer = tiny_bpe()
    half = tokenizer.encode("😀".encode())[0]
    decode = tokenizer.stream()
    said = "".join(decode(half) for _ in range(100))
    assert 80 < len(said) <= 100
    assert set(said) == {"\ufffd"}


@given(st.lists(st.integers(0, 5)))
def test_a_stream_of_words_is_what_decode_gives(ids: list[int]) -> None:
    tokenizer = train_words([b"a b c d"], 1)
    decode = tokenizer.stream()
    assert "".join(decode(number) for number in ids).encode() == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 259)))
def test_a_stream_bears_ids_that_no_text_has(ids: list[int]) -> None:
    """An untrained model draws anything; what is whole comes out, the rest waits."""
    decode = tiny_bpe().stream()
    streamed = "".join(decode(number) for number in ids)
    assert tiny_bpe().decode(ids).decode().startswith(streamed)
