"""Vectors of texts: padding, order and batch-mates change nothing; the packed engine is the encoder."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from encoders import small_encoder
from segue.checkpoint import TextEncoder
from segue.config import EncoderReading
from segue.errors import InputError
from segue.infer import embed
from segue.infer.embed import embed_texts, embed_tokens, length_batches, read_pieces

WORDS = st.sampled_from("the animal did not cross street . untired zzz".split())  # noqa: SIM905
TEXT = st.lists(WORDS, max_size=12).map(" ".join)
SHAPES = {
    "bert": {},
    "window": {"window": 2, "global_tokens": 1},
    "albert": {"shared_layers": True, "embedding": 4, "activation": "gelu-tanh"},
}


@pytest.fixture(params=SHAPES, scope="module")
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    encoder = small_encoder(tmp_path_factory.mktemp("encoder"), **SHAPES[request.param])
    encoder.model.double()
    return encoder


@given(texts=st.lists(TEXT, min_size=1, max_size=7), second=TEXT)
def test_a_text_is_read_as_if_it_were_alone(encoder: TextEncoder, texts: list[str], second: str) -> None:
    """By the packed engine, in any company, as by the encoder itself on padded batches."""
    for pairs in (None, [second] * len(texts)):
        together = encoder(texts, pairs, output_hidden_states=True, output_attentions=True)
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        padded = encoder.tokenizer.encode(inputs, 9)
        ids, mask, types = map(torch.from_numpy, padded[:3])
        with torch.no_grad():
            wanted = encoder.model.encoder(
                ids, mask, types, output_hidden_states=True, output_attentions=True
            )
        assert torch.equal(together.attention_mask, mask)
        seen = mask.bool()
        assert_close(together.last_hidden_state[seen], wanted.last_hidden_state[seen])
        assert not together.last_hidden_state[~seen].any()
        assert_close(together.pooler_output, wanted.pooler_output)
        both = zip(together.hidden_states or (), wanted.hidden_states or (), strict=True)
        assert all(torch.allclose(ours[seen], theirs[seen]) for ours, theirs in both)
        queries = seen[:, None, :, None]
        for ours, theirs in zip(together.attentions or (), wanted.attentions or (), strict=True):
            assert_close(ours, theirs * queries)
        for number, text in enumerate(texts):
            alone = encoder(text, None if pairs is None else pairs[number])
            size = int(mask[number].sum())
            assert_close(together.last_hidden_state[number, :size], alone.last_hidden_state[0])


@given(lengths=st.lists(st.integers(1, 300), max_size=60))
def test_batches_hold_every_text_once_and_no_more_than_fits(lengths: list[int]) -> None:
    most, embed.BATCH_TOKENS = embed.BATCH_TOKENS, 256
    try:
        batches = list(length_batches(lengths))
    finally:
        embed.BATCH_TOKENS = most
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[number] for number in batch]
        assert sizes == sorted(sizes, reverse=True)
        assert len(batch) == 1 or sum(sizes) <= 256


def test_pooling_and_layers(encoder: TextEncoder) -> None:
    texts = ["the animal", "", "did not cross the street ."]
    states = embed_tokens(encoder, read_pieces(encoder, texts), layer=1)
    mean = EncoderReading(max_length=9, pooling="mean")
    first = EncoderReading(max_length=9, pooling="cls", normalize=True)
    assert_close(
        embed_texts(encoder, texts, reading=mean, layer=1), torch.stack([one.mean(0) for one in states])
    )
    vectors = embed_texts(encoder, texts, reading=first, layer=1)
    assert_close(vectors, torch.stack([one[0] / one[0].norm() for one in states]))
    assert_close(encoder.embed(texts).norm(dim=-1), torch.ones(3, dtype=torch.float64))
    assert_close(embed_texts(encoder, texts, layer=2), encoder.embed(texts))
    with pytest.raises(InputError, match="there is no layer 3: 0 is the embedding, 2 or -1 the last"):
        embed_texts(encoder, texts, layer=3)


def test_what_cannot_be_read_is_one_line(encoder: TextEncoder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no texts"):
        encoder([])
    with pytest.raises(InputError, match="2 texts and 1 to pair with them"):
        encoder(["a", "b"], ["c"])
    with pytest.raises(InputError, match="texts should be strings; found int"):
        encoder(["a", 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="max_length should be between 5 and the encoder's 9 positions"):
        encoder("the animal", max_length=10)
    with pytest.raises(InputError, match="this encoder reads no pairs"):
        small_encoder(tmp_path, types=1)("a", "b")
    assert encoder("the animal did not cross the street", max_length=5).last_hidden_state.shape == (1, 5, 8)


def test_an_encoder_of_low_rank_embeds_and_has_no_weights_to_show(tmp_path: Path) -> None:
    encoder = small_encoder(tmp_path, attention="linformer", rank=3)
    texts = ["the animal", "did not cross the street ."]
    alone = torch.cat([encoder.embed(text) for text in texts])
    assert_close(encoder.embed(texts), alone)
    with pytest.raises(InputError, match="linformer has no attention weights of single tokens"):
        encoder(texts, output_attentions=True)
