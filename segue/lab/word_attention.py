"""Attention weights between words, of every head of an encoder; and encoders to compare with.

Letters: E sentences, N layers, H heads, S tokens, W words.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import torch
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import models
from torch import Tensor, nn

from segue.checkpoint import TextEncoder
from segue.config import EncoderConfig, EncoderReading
from segue.errors import InputError
from segue.nn.encoder import Encoder
from segue.nn.task_encoder import TaskEncoder
from segue.text.wordpiece import SPECIAL, UNKNOWN, PlacedPieces, WordPiece, as_bert

BATCH = 32


@torch.no_grad()
def word_weights(
    encoder: TextEncoder, sentences: Sequence[Sequence[str]], queries: Sequence[int]
) -> list[Tensor]:
    """For each sentence (N H, W): what one of its words attends to, over [CLS] and [SEP] as well.

    A word of several pieces attends as its pieces do on average, and is attended to as much as all of them.
    """
    model, pieces = encoder.model.encoder, encoder.tokenizer.placed([list(words) for words in sentences])
    if not isinstance(model, Encoder) or not model.config.sees_all:
        raise InputError("this encoder has no attention weights between all tokens to show; give a BERT")
    weights: list[Tensor] = []
    for first in range(0, len(pieces), BATCH):
        batch = pieces[first : first + BATCH]
        ids, mask = _padded(encoder.tokenizer, batch)
        attentions = torch.stack(model(ids, mask, output_attentions=True).attentions or (), dim=1)
        for number, one in enumerate(batch):
            words = _words(one, len(sentences[first + number]))  # (S, W)
            query = words[:, queries[first + number]] / words[:, queries[first + number]].sum()
            size = len(words)
            looks = torch.einsum("nhst,s->nht", attentions[number, :, :, 1 : size + 1, 1 : size + 1], query)
            weights.append((looks @ words).flatten(0, 1))
    return weights


def _padded(tokenizer: WordPiece, batch: Sequence[PlacedPieces]) -> tuple[Tensor, Tensor]:
    cls, sep = tokenizer.around
    rows = [[cls, *one.ids, sep] for one in batch]
    size = max(map(len, rows))
    ids = torch.full((len(rows), size), tokenizer.padding)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
        mask[place, : len(row)] = 1
    return ids, mask


def _words(pieces: PlacedPieces, count: int) -> Tensor:
    """(S, W) One where a piece belongs to a word."""
    belongs = torch.zeros(len(pieces.ids), count)
    belongs[range(len(pieces.ids)), pieces.words] = 1
    if not bool(belongs.any(dim=0).all()):
        raise InputError(
            "the encoder's tokenizer drops words of the probes, such as brackets; give another encoder"
        )
    return belongs


def head_name(number: int, heads: int) -> str:
    """Layer and head, counted from 1."""
    return f"layer {number // heads + 1}, head {number % heads + 1}"


def untrained(encoder: TextEncoder, seed: int) -> TextEncoder:
    """An encoder of the same shape and with the same kind of head, with fresh weights."""
    torch.manual_seed(seed)
    return replace(encoder, model=TaskEncoder(encoder.model.config, encoder.model.task).eval())


@torch.no_grad()
def shuffled(encoder: TextEncoder, seed: int) -> TextEncoder:
    """The same encoder with the entries of each weight in random order: as large as trained, and without meaning."""
    model, draw = copy.deepcopy(encoder.model), torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.copy_(weight.flatten()[torch.randperm(weight.numel(), generator=draw)].view_as(weight))
    return replace(encoder, model=model)


def random_encoder(words: Sequence[str], seed: int) -> TextEncoder:
    """A small encoder with fresh weights whose vocabulary is these words."""
    torch.manual_seed(seed)
    places = {word: place for place, word in enumerate((*SPECIAL, *words))}
    file = as_bert(TokenizerFile(models.WordPiece(places, unk_token=UNKNOWN)), lower=True)
    shape = EncoderConfig(vocab=len(places), width=32, layers=2, heads=4, feedforward=64, max_positions=64)
    return TextEncoder(TaskEncoder(shape).eval(), WordPiece(file), EncoderReading(max_length=64))


def weights_digest(model: nn.Module) -> str:
    """A digest of all weights."""
    state = sha256()
    for name, weight in sorted(model.state_dict().items()):
        state.update(name.encode() + weight.contiguous().numpy().tobytes())
    return state.hexdigest()
