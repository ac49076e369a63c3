"""Which reading of an ambiguous sentence a model finds likelier, by what it expects behind it.

    the woman saw the man with the telescope . the _____ had the telescope .

A model that takes the telescope for the instrument expects the woman there, and the man's beard to be the man's.
"""

from collections.abc import Callable, Sequence

import torch

from segue.checkpoint import Bundle, TextEncoder
from segue.infer.embed import embed_tokens, read_pieces
from segue.lab.probes import Reading, ReadingPair
from segue.nn.task_encoder import MaskedHead
from segue.text.wordpiece import MASK

Preference = Callable[[Reading], float]
"""Nats by which the one who sees is likelier than the one who is seen to have the thing."""


def followed_by(reading: Reading) -> tuple[str, str, str, str]:
    """The text up to the owner, the two who may be it, and the rest."""
    who, noun, thing = (reading.words[place] for place in (1, reading.noun, reading.query))
    return f"{' '.join(reading.words)} the ", who, noun, f" had the {thing} ."


def preference_of_encoder(encoder: TextEncoder) -> Preference | None:
    """By the masked-LM head; None without one."""
    head = encoder.model.head
    mask = encoder.tokenizer.file.token_to_id(MASK)
    if not isinstance(head, MaskedHead) or mask is None:
        return None

    @torch.no_grad()
    def prefers(reading: Reading) -> float:
        before, who, noun, behind = followed_by(reading)
        (pieces,) = read_pieces(encoder, [f"{before}{MASK}{behind}"])
        (states,) = embed_tokens(encoder, [pieces])
        logits = head(states[pieces.ids.index(mask)], encoder.model.encoder.words.weight)
        one, other = (encoder.tokenizer.placed([word])[0].ids[0] for word in (who, noun))
        return float(logits[one] - logits[other])

    return prefers


def preference_of_reader(bundle: Bundle) -> Preference:
    """By a language model, which reads the words one after the other."""

    @torch.no_grad()
    def prefers(reading: Reading) -> float:
        before, who, noun, behind = followed_by(reading)
        nats = [_nats(bundle, before, word + behind) for word in (who, noun)]
        return nats[1] - nats[0]

    return prefers


def _nats(bundle: Bundle, before: str, behind: str) -> float:
    assert bundle.tokenizer is not None
    ids = torch.as_tensor(bundle.tokenizer.encode((before + behind).encode()), dtype=torch.int64)[None]
    shared = len(bundle.tokenizer.encode(before.encode()))
    hidden, _ = bundle.model(ids[:, :-1], bundle.model.start(reach=bundle.reading.reach))
    return float(
        bundle.model.nats(hidden, ids[:, 1:])[0, shared - 2 :].sum()
    )  # a word may join the last token


def told_apart(prefers: Preference, pairs: Sequence[ReadingPair]) -> float:
    """The share of pairs in which the instrument's owner is rather the one who sees."""
    return sum(prefers(pair.instrument) > prefers(pair.attribute) for pair in pairs) / len(pairs)
