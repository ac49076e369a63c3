"""BERT's masking: some tokens of a text are chosen, and the model sees something else in most of their places.

Of the chosen places 80 % become [MASK], 10 % a random piece (perhaps the right one), and 10 % stay as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tokenizers import models

from segue.errors import InputError
from segue.text.text_batches import IGNORED_LABEL
from segue.text.wordpiece import MASK, SPECIAL, WordPiece

Ids = np.ndarray[Any, Any]

MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen places that become [MASK], or a random piece; the rest stay as they are."""


@dataclass(frozen=True, eq=False)
class MaskablePieces:
    """What masking knows of a WordPiece vocabulary."""

    ids: dict[str, int]  # of the special symbols
    special: Ids  # (V,) True for ids that are never chosen, and never put in a piece's place
    continues: Ids  # (V,) True for pieces inside a word, such as `##ing`


class MaskedIds(NamedTuple):
    """A text as the model sees it, and what it has to predict."""

    ids: Ids
    labels: Ids  # the true id at the chosen places, elsewhere IGNORED_LABEL


def maskable_pieces(tokenizer: WordPiece, name: str) -> MaskablePieces:
    """The pieces of a vocabulary that has BERT's special symbols; `name` says whose it is in an error."""
    known = tokenizer.file.get_vocab()
    missing = [symbol for symbol in SPECIAL if symbol not in known]
    if missing or not isinstance(tokenizer.file.model, models.WordPiece):
        what = f"lacks {', '.join(missing)}" if missing else "cuts words in another way"
        raise InputError(
            f"the tokenizer of {name} {what}; masked words need a WordPiece vocabulary: "
            "segue prepare … --tokenizer wordpiece"
        )
    special, continues = np.ones(tokenizer.size, dtype=bool), np.zeros(tokenizer.size, dtype=bool)
    for piece, number in tokenizer.file.get_vocab(with_added_tokens=False).items():
        special[number] = piece in SPECIAL
        continues[number] = piece.startswith(tokenizer.file.model.continuing_subword_prefix)
    if special.all():
        raise InputError(f"the tokenizer of {name} has no pieces but the special ones")
    return MaskablePieces({symbol: known[symbol] for symbol in SPECIAL}, special, continues)


def choose_places(
    ids: Ids, pieces: MaskablePieces, share: float, *, whole_words: bool, random: np.random.Generator
) -> Ids:
    """Places to predict: `share` of the tokens of a text, at least one, and never a special symbol.

    With `whole_words` a word is chosen with all its pieces or not at all; one that would exceed the share is passed
    over, so that a text of a single long word may have no place at all.
    """
    wanted = max(1, round(share * len(ids)))
    places = np.flatnonzero(~pieces.special[ids])
    if not whole_words:
        chosen: Ids = random.permutation(places)[:wanted]
        return chosen
    _, words, sizes = np.unique(
        np.cumsum(~pieces.continues[ids])[places], return_inverse=True, return_counts=True
    )
    taken, left = np.zeros(len(sizes), dtype=bool), wanted
    for word in random.permutation(len(sizes)):
        if sizes[word] <= left:
            taken[word], left = True, left - sizes[word]
    return places[taken[words]]


def mask_places(ids: Ids, places: Ids, pieces: MaskablePieces, random: np.random.Generator) -> MaskedIds:
    """The text with the chosen places masked, replaced at random, or kept."""
    labels = np.full(len(ids), IGNORED_LABEL, dtype=np.int64)
    labels[places] = ids[places]
    seen = ids.astype(np.int64)
    draws = random.random(len(places))
    seen[places[draws < MASKED]] = pieces.ids[MASK]
    swapped = places[(draws >= MASKED) & (draws < MASKED + RANDOM)]
    seen[swapped] = random.choice(np.flatnonzero(~pieces.special), len(swapped))
    return MaskedIds(seen, labels)
