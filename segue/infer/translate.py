"""From sentences to sentences: batches of like length, beam search, and everything back in its order.

Letters: B pairs, S tokens of the source, T of the target.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segue.checkpoint import Translator
from segue.config import Translating
from segue.errors import InputError
from segue.infer.beam import beam_search
from segue.infer.trace import recording
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.universal_seq2seq import UniversalSeq2Seq
from segue.progress import Report, silent
from segue.text.batches import longest_first
from segue.text.pair_batches import padded
from segue.text.pairs import cased
from segue.text.special_tokens import special_tokens
from segue.text.tokenizer import UNK

BUDGET = 2048
"""Tokens of sources that are translated together."""

AHEAD = 1000
"""Lines of a stream that are sorted by length together."""

WORDLESS = 260
"""A vocabulary of fewer symbols has bytes and hardly anything else."""


@dataclass(frozen=True)
class Translation:
    """A text found, and how likely the model thinks it is."""

    text: str
    score: float
    whole: bool
    cut: bool = False  # the source was too long, and its end was not read


def strangeness(translator: Translator, sentences: Sequence[bytes]) -> float:
    """Tokens for each byte: near 1 where the vocabulary knows no word of the language, unless it knows none of any.

    Of a vocabulary of words: the share of unknown ones.
    """
    if translator.source.size < WORDLESS:
        return 0.0
    texts = [cased(text, translator.lower) for text in sentences]
    unknown = translator.source.id_of(UNK)
    if unknown is not None:
        ids = [token for text in texts for token in translator.source.encode(text)]
        return ids.count(unknown) / max(1, len(ids))
    return sum(len(translator.source.encode(text)) for text in texts) / max(1, sum(map(len, texts)))


@torch.no_grad()
def translate(
    translator: Translator,
    sentences: Sequence[bytes],
    *,
    translating: Translating | None = None,
    best: int = 1,
    report: Report = silent,
) -> list[list[Translation]]:
    """The best translations of each sentence, in the sentences' order. An empty sentence is an empty one."""
    how = translating or translator.translating
    if best > how.beam_width:
        raise InputError(f"a beam of {how.beam_width} finds at most as many translations; found best={best}")
    limit = longest_source(translator.model, how.longest)
    ids = [list(translator.source.encode(cased(text, translator.lower))) for text in sentences]
    too_long = {number for number, tokens in enumerate(ids) if len(tokens) > limit}
    ids = [tokens[:limit] for tokens in ids]
    found: list[list[Translation]] = [[Translation("", 0.0, whole=True)] * best for _ in sentences]
    real = [number for number, tokens in enumerate(ids) if tokens]
    lengths = np.array([[len(ids[number]) + 1] * 2 for number in real]).reshape(-1, 2)
    done = 0
    for chosen in longest_first(lengths, BUDGET) if real else []:
        some = [real[place] for place in chosen]
        for number, texts in zip(some, _searched(translator, [ids[n] for n in some], how, best), strict=True):
            found[number] = [replace(text, cut=number in too_long) for text in texts]
        done += len(some)
        report("translating", done, len(real))
    return found


def longest_source(model: EncoderDecoder, longest: int) -> int:
    """The most tokens of a source that are read, without its end: `longest`, or fewer if the model reads no more."""
    columns: int = getattr(model.config, "max_source", 0)
    return min(longest, columns - 1) if columns else longest


def _searched(
    translator: Translator, rows: list[list[int]], how: Translating, best: int
) -> list[list[Translation]]:
    model = translator.model.frozen()
    device = model.device
    source_end = special_tokens(model.config.source_vocab or model.config.vocab).end
    start, end = special_tokens(model.config.vocab)
    source, lengths = padded([[*row, source_end] for row in rows], source_end)

    def read(newest: Tensor, memory: Any) -> tuple[Tensor, Tensor, Any]:
        hidden, memory = model(newest[:, None].to(device, non_blocking=True), memory)
        return *model.likeliest(hidden[:, 0], how.beam_width, never=start), memory  # a start is never inside

    found = beam_search(
        read,
        model.start(source.to(device, non_blocking=True), lengths),
        len(rows),
        start=start,
        end=end,
        beam_width=how.beam_width,
        longest=how.longest,
        penalty=how.penalty,
        best=best,
    )
    return [
        [Translation(_line(translator.target.decode(one.tokens)), one.score, one.whole) for one in texts]
        for texts in found
    ]


def _line(text: bytes) -> str:
    """One line, whatever a model may have put into it."""
    return " ".join(text.decode(errors="replace").splitlines())


def translate_stream(
    translator: Translator, lines: Iterable[bytes], *, translating: Translating | None = None, best: int = 1
) -> Iterator[list[Translation]]:
    """Line after line for ever, some read ahead so that like lengths go together."""
    rest = iter(lines)
    while some := list(islice(rest, AHEAD)):
        yield from translate(translator, [line.strip() for line in some], translating=translating, best=best)


@torch.no_grad()
def looked_at(
    translator: Translator, source: bytes, text: str
) -> tuple[list[str], list[str], dict[str, Tensor]]:
    """The tokens of a source and of its translation, each with its end, and the weights of every attention.

    Weights are (H, T, S), by the attention's name. A translation is read as it was written: behind the start.
    """
    model = translator.model
    ours, theirs = _both_sides(translator, source, text)
    with recording(model) as recorded:
        model(theirs, model.start(ours))
    if not recorded:
        raise InputError(
            "this translator has no attention to show: its decoder gets the encoder's last state alone"
        )
    words = [translator.source.decode([token]).decode(errors="replace") for token in ours[0, :-1].tolist()]
    written = [translator.target.decode([token]).decode(errors="replace") for token in theirs[0, 1:].tolist()]
    return [*words, "<end>"], [*written, "<end>"], {name: weights[0] for name, weights in recorded.items()}


def _both_sides(translator: Translator, source: bytes, text: str) -> tuple[Tensor, Tensor]:
    """(1, S) The tokens of a source with its end, and (1, T) those of a translation behind the start."""
    config = translator.model.config
    ours = list(translator.source.encode(cased(source, translator.lower)))
    ours = ours[: longest_source(translator.model, len(ours))]
    theirs = list(translator.target.encode(text.encode()))
    source_end = special_tokens(config.source_vocab or config.vocab).end
    return torch.tensor([[*ours, source_end]]), torch.tensor([[special_tokens(config.vocab).start, *theirs]])


@torch.no_grad()
def steps_taken(translator: Translator, source: bytes, text: str) -> tuple[list[int], list[int]]:
    """The steps that a Universal Transformer takes for each token of a source and of its translation.

    They are in the order of `looked_at`. A model without steps has none.
    """
    model = translator.model
    if not isinstance(model, UniversalSeq2Seq):
        return [], []
    ours, theirs = _both_sides(translator, source, text)
    memory = model.start(ours)
    _, _, pondering = model.pondered(theirs, memory)
    return memory.pondering.steps[0].tolist(), pondering.steps[0].tolist()
