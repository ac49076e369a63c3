"""Reads texts with an encoder: states of every token, and vectors of texts.

Texts are sorted by length and read in batches without padding, so no order, batch-mate or
batch size changes a vector.

Letters: B texts, S tokens, H heads, C width, N layers.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from segue.checkpoint import TextEncoder
from segue.config import EncoderReading
from segue.errors import InputError
from segue.nn.encoder import Encoder
from segue.nn.packed_encoder import PackedTexts
from segue.text.wordpiece import Pieces, Text

BATCH_TOKENS = 4096
"""Tokens that are read at once: enough for large products, few enough that their states stay in the CPU's cache."""


class EncodedTexts(NamedTuple):
    """Under the names that BERT's users know; padded to the longest text, where states are zero."""

    last_hidden_state: Tensor  # (B, S, C)
    pooler_output: Tensor | None  # (B, C), made of the first token; None without a pooler
    attention_mask: Tensor  # (B, S): 1 for a token, 0 for padding
    hidden_states: tuple[Tensor, ...] | None = None  # N + 1 of (B, S, C): the embedding, then every layer
    attentions: tuple[Tensor, ...] | None = None  # N of (B, H, S, S)


def paired(texts: str | Sequence[str], pairs: str | Sequence[str] | None) -> list[Text]:
    """Texts, or pairs of texts, as a list. One string is one text."""
    first = [texts] if isinstance(texts, str) else list(texts)
    second = [pairs] if isinstance(pairs, str) else pairs
    for text in (*first, *(second or ())):
        if not isinstance(text, str):
            raise InputError(f"texts should be strings; found {type(text).__name__}")
    if second is None:
        return [*first]
    if len(first) != len(second):
        raise InputError(f"there are {len(first):,} texts and {len(second):,} to pair with them")
    return list(zip(first, second, strict=True))


@torch.no_grad()
def encode_texts(
    encoder: TextEncoder,
    texts: Sequence[Text],
    *,
    max_length: int | None = None,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
) -> EncodedTexts:
    """All states of all texts. They take memory for B texts as long as the longest."""
    pieces = read_pieces(encoder, texts, max_length)
    model = encoder.model.encoder
    last = model.config.layers
    wanted = range(last + 1) if output_hidden_states else (last,)
    states: list[list[Tensor]] = [[] for _ in pieces]
    for number, layers in read_states(encoder, pieces, wanted):
        states[number] = layers
    layers = [pad_sequence(list(layer), batch_first=True) for layer in zip(*states, strict=True)]
    mask = pad_sequence([torch.ones(len(one.ids), dtype=torch.int64) for one in pieces], batch_first=True)
    return EncodedTexts(
        layers[-1],
        model.pooled(layers[-1][:, 0]),
        mask.to(layers[-1].device, non_blocking=True),
        tuple(layers) if output_hidden_states else None,
        _attentions(model, pieces) if output_attentions else None,
    )


@torch.no_grad()
def embed_texts(
    encoder: TextEncoder, texts: Sequence[Text], *, reading: EncoderReading | None = None, layer: int = -1
) -> Tensor:
    """(B, C) A vector for each text: a layer's states, pooled and normalised as the reading says."""
    reading = reading or encoder.reading
    pieces = read_pieces(encoder, texts, reading.max_length)
    return embed_pieces(encoder, pieces, reading, layer)


@torch.no_grad()
def embed_pieces(
    encoder: TextEncoder, pieces: Sequence[Pieces], reading: EncoderReading, layer: int
) -> Tensor:
    """(B, C) A vector for each text that is tokenized already."""
    model = encoder.model.encoder
    vectors = model.words.weight.new_empty(len(pieces), model.config.width)
    for number, (states,) in read_states(encoder, pieces, (layer_number(encoder, layer),)):
        vectors[number] = states[0] if reading.pooling == "cls" else states.mean(dim=0)
    return F.normalize(vectors, dim=-1) if reading.normalize else vectors


@torch.no_grad()
def embed_tokens(encoder: TextEncoder, pieces: Sequence[Pieces], layer: int = -1) -> list[Tensor]:
    """For each text a layer's states (S, C) of its tokens, [CLS] and [SEP] included."""
    read = read_states(encoder, pieces, (layer_number(encoder, layer),))
    by_number = {number: states for number, (states,) in read}
    return [by_number[number] for number in range(len(pieces))]


def read_pieces(encoder: TextEncoder, texts: Sequence[Text], max_length: int | None = None) -> list[Pieces]:
    """The tokens of texts or pairs, truncated to `max_length`, or to the encoder's own."""
    if not texts:
        raise InputError("there are no texts to read")
    most = encoder.model.config.max_positions
    if max_length is not None and not 5 <= max_length <= most:
        raise InputError(
            f"max_length should be between 5 and the encoder's {most} positions; found {max_length}"
        )
    pieces = encoder.tokenizer.pieces(texts, max_length or encoder.reading.max_length)
    if encoder.model.config.types < 2 and any(1 in one.types for one in pieces):
        raise InputError("this encoder reads no pairs: it knows one type of text")
    return pieces


def layer_number(encoder: TextEncoder, layer: int) -> int:
    """The number of a layer: 0 is the embedding, N or -1 the last."""
    last = encoder.model.config.layers
    if not -last - 1 <= layer <= last:
        raise InputError(f"there is no layer {layer}: 0 is the embedding, {last} or -1 the last")
    return layer % (last + 1)


def length_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of texts in batches of about BATCH_TOKENS tokens, the longest first."""
    batch: list[int] = []
    held = 0
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        if batch and held + lengths[number] > BATCH_TOKENS:
            yield batch
            batch, held = [], 0
        batch.append(number)
        held += lengths[number]
    if batch:
        yield batch


def read_states(
    encoder: TextEncoder, pieces: Sequence[Pieces], wanted: Sequence[int]
) -> Iterator[tuple[int, list[Tensor]]]:
    """Each text's number, and its states (S, C) of the wanted layers. Layers behind them are not computed."""
    if not encoder.model.config.sees_all:
        yield from _states_one_by_one(encoder.model.encoder, pieces, wanted)
        return
    engine = encoder.engine()
    device = encoder.model.encoder.words.weight.device
    for numbers in length_batches([len(one.ids) for one in pieces]):
        batch = [pieces[number] for number in numbers]
        ids, types = (
            torch.tensor(list(chain.from_iterable(rows))).to(device, non_blocking=True)
            for rows in ([one.ids for one in batch], [one.types for one in batch])
        )
        lengths = [len(one.ids) for one in batch]
        read = islice(engine(PackedTexts(ids, types, lengths)), max(wanted) + 1)
        layers = [layer.split(lengths) for number, layer in enumerate(read) if number in wanted]
        for place, number in enumerate(numbers):
            yield number, [layer[place] for layer in layers]


def _states_one_by_one(
    encoder: Encoder, pieces: Sequence[Pieces], wanted: Sequence[int]
) -> Iterator[tuple[int, list[Tensor]]]:
    """The same by the encoder itself, which knows windows and attention of low rank; one text at a time, unpadded."""
    for number, one in enumerate(pieces):
        device = encoder.words.weight.device
        ids, types = (torch.tensor([row]).to(device, non_blocking=True) for row in (one.ids, one.types))
        states = encoder(ids, None, types, output_hidden_states=True).hidden_states or ()
        yield number, [states[layer][0] for layer in wanted]


def _attentions(encoder: Encoder, pieces: Sequence[Pieces]) -> tuple[Tensor, ...]:
    """N of (B, H, S, S): the attention weights of each text, by the textbook's formula; zero where it is padded."""
    config, size = encoder.config, max(len(one.ids) for one in pieces)
    shape = len(pieces), config.heads, size, size
    weights = [encoder.words.weight.new_zeros(shape) for _ in range(config.layers)]
    for number, one in enumerate(pieces):
        device = weights[0].device
        ids, types = (torch.tensor([row]).to(device, non_blocking=True) for row in (one.ids, one.types))
        read = encoder(ids, None, types, output_attentions=True)
        for layer, here in zip(weights, read.attentions or (), strict=True):
            layer[number, :, : len(one.ids), : len(one.ids)] = here[0]
    return tuple(weights)
