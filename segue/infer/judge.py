"""How good a translator is: the nats of a split, and its own translations beside the right ones."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from segue.checkpoint import Translator
from segue.config import Translating
from segue.errors import InputError
from segue.infer.translate import BUDGET, translate
from segue.nn.engine import Engine
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.progress import Report, silent
from segue.text.batches import longest_first
from segue.text.pair_batches import batch_of
from segue.text.pairs import PairSet


class Measured(NamedTuple):
    """A figure, and the signature that says exactly how it was taken."""

    score: float
    signature: str


class Judgement(NamedTuple):
    """What a split says of a translator."""

    pairs: int
    nats: float  # per token, of the right translations
    exact: float  # share of pairs that it translates to the letter
    cut: int  # sources that were too long for it, whose ends it did not read
    bleu: Measured | None  # None where sacrebleu is not installed
    chrf: Measured | None

    @property
    def perplexity(self) -> float:
        return math.exp(min(700.0, self.nats))


def judge(
    translator: Translator,
    pairs: PairSet,
    split: str,
    *,
    translating: Translating | None = None,
    report: Report = silent,
) -> Judgement:
    """Translate a split and compare."""
    sources, wanted = split_texts(pairs, split)
    translations = [
        best[0] for best in translate(translator, sources, translating=translating, report=report)
    ]
    translated, cut = [one.text for one in translations], sum(one.cut for one in translations)
    exact = sum(ours == theirs for ours, theirs in zip(translated, wanted, strict=True)) / len(wanted)
    figures: list[Measured | None] = [None, None]
    with suppress(InputError):  # without sacrebleu
        figures = [measure(translated, wanted, lower=translator.lower) for measure in (bleu, chrf)]
    return Judgement(len(wanted), split_nats(translator.model, pairs, split), exact, cut, *figures)


def split_texts(pairs: PairSet, split: str) -> tuple[list[bytes], list[str]]:
    """The sources of a split, and the right translations, both whole."""
    sides = list(pairs.texts(split))
    return [source for source, _ in sides], [target.decode(errors="replace") for _, target in sides]


@torch.no_grad()
def split_nats(model: Seq2Seq | RecurrentSeq2Seq | Engine[Any], pairs: PairSet, split: str) -> float:
    """Nats per token of the right translations, ends included, without smoothing."""
    begin, model = pairs.split(split).begin, model.frozen()
    device = model.device
    nats, tokens = 0.0, 0
    for numbers in longest_first(pairs.lengths(split), BUDGET):
        batch = batch_of(pairs, begin + numbers)
        memory = model.start(batch.source.to(device), batch.source_lengths)
        hidden, _ = model(batch.decoder_input.to(device), memory, lengths=batch.target_lengths)
        targets = batch.targets.to(device)
        surprise = model.nats(hidden, targets.clamp(min=0)).masked_fill(targets < 0, 0)
        nats, tokens = nats + surprise.double().sum().item(), tokens + int((targets >= 0).sum())
    return nats / tokens


def bleu(translated: Sequence[str], wanted: Sequence[str], *, lower: bool = False) -> Measured:
    return _measured("BLEU", translated, wanted, lower)


def chrf(translated: Sequence[str], wanted: Sequence[str], *, lower: bool = False) -> Measured:
    return _measured("CHRF", translated, wanted, lower)


def _measured(name: str, translated: Sequence[str], wanted: Sequence[str], lower: bool) -> Measured:
    """By sacrebleu."""
    try:
        from sacrebleu import metrics
    except ImportError:
        raise InputError("BLEU and chrF need the mt extra: pip install 'segue-lm[mt]'") from None
    metric = getattr(metrics, name)(lowercase=lower)
    score = metric.corpus_score(list(translated), [list(wanted)]).score
    return Measured(float(score), str(metric.get_signature()))
