"""Tags of words, by an encoder with a head for them.

Letters: S tokens of a window.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from segue.checkpoint import TextEncoder
from segue.errors import InputError
from segue.infer.classify import check_head
from segue.infer.embed import read_states
from segue.progress import Report, silent
from segue.text.example_pieces import Window, first_pieces, sentence_windows
from segue.text.examples import OUTSIDE
from segue.text.wordpiece import PlacedPieces


def tag(encoder: TextEncoder, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    """The tag of each word of each sentence.

    A sentence longer than the encoder reads is read in overlapping windows. A word takes the tag of its first piece;
    one without any piece is outside of everything.
    """
    check_head(encoder, "tags")
    if not sentences:
        raise InputError("there are no sentences to tag")
    for number, words in enumerate(sentences, start=1):
        if isinstance(words, str):
            raise InputError("a sentence should be a list of words; use sentence.split()")
        if not words or not all(word.strip() for word in words):
            raise InputError(f"sentence {number:,} has no words, or an empty one")
    return tagged(encoder, sentences, encoder.tokenizer.placed(sentences))


def tagged(
    encoder: TextEncoder, sentences: Sequence[Sequence[str]], placed: Sequence[PlacedPieces]
) -> list[list[str]]:
    """The same, of sentences that are tokenized already."""
    labels = check_head(encoder, "tags")
    cut = [sentence_windows(one, encoder.reading.max_length, encoder.tokenizer) for one in placed]
    logits = iter(window_logits(encoder, [window for windows in cut for window in windows]))
    tags = []
    missing = OUTSIDE if OUTSIDE in labels else labels[0]
    for words, sentence, windows in zip(sentences, placed, cut, strict=True):
        by_piece: dict[int, str] = {}
        for window in windows:
            best = next(logits)[window.offset : window.offset + len(window.tokens)].argmax(dim=-1).tolist()
            for token, owned, label in zip(window.tokens, window.owned, best, strict=True):
                if owned:
                    by_piece[token] = labels[label]
        first = first_pieces(sentence)
        tags.append([by_piece[first[word]] if word in first else missing for word in range(len(words))])
    return tags


@torch.no_grad()
def window_logits(encoder: TextEncoder, windows: Sequence[Window], report: Report = silent) -> list[Tensor]:
    """(S, labels) The head's logits of each window's tokens."""
    logits: list[Tensor] = [torch.empty(0)] * len(windows)
    last = encoder.model.config.layers
    read = read_states(encoder, [window.pieces for window in windows], (last,))
    for done, (number, (states,)) in enumerate(read, start=1):
        logits[number] = encoder.model.predict(states, None).logits
        report("reading", done, len(windows))
    return logits
