"""Fills masked words: the pieces that an encoder with a masked-LM head expects at each [MASK]."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from segue.checkpoint import TextEncoder
from segue.errors import InputError
from segue.infer.embed import embed_tokens, read_pieces
from segue.nn.task_encoder import MaskedHead
from segue.text.wordpiece import MASK


class Guess(NamedTuple):
    """A piece and its probability."""

    piece: str
    probability: float


@torch.no_grad()
def fill(encoder: TextEncoder, texts: Sequence[str], top: int = 5) -> list[list[list[Guess]]]:
    """For each text and each of its [MASK]s, the `top` likeliest pieces. Each mask is filled by itself."""
    head = encoder.model.head
    if not isinstance(head, MaskedHead):
        raise InputError("this encoder has no masked-LM head, so it cannot fill masks")
    mask = encoder.tokenizer.file.token_to_id(MASK)
    if mask is None:
        raise InputError(f"the encoder's vocabulary has no {MASK}")
    pieces = read_pieces(encoder, texts)
    table = encoder.model.encoder.words.weight
    filled = []
    for one, states in zip(pieces, embed_tokens(encoder, pieces), strict=True):
        places = [place for place, number in enumerate(one.ids) if number == mask]
        chances = head(states[places], table).softmax(dim=-1)
        best, ids = chances.topk(min(top, chances.size(-1)))
        filled.append(
            [
                [
                    Guess(name, chance)
                    for name, chance in zip(encoder.tokenizer.tokens(row), shares.tolist(), strict=True)
                ]
                for row, shares in zip(ids.tolist(), best, strict=True)
            ]
        )
    return filled
