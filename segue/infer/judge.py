"""How good a translator is: the nats of a split, and its own translations beside the right ones."""

import math
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch

from segue.checkpoint import Translator
from segue.config import Translating
from segue.errors import InputError
from segue.infer.steps import MeanSteps
from segue.infer.translate import BUDGET, translate
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.engine import Engine
from segue.nn.universal_seq2seq import UniversalSeq2Seq
from segue.progress import Report, silent
from segue.text.batches import longest_first
from segue.text.pair_batches import batch_of
from segue.text.pairs import PairSet

Metric = Literal["bleu", "rouge"]
"""bleu: BLEU and chrF, for translations. rouge: ROUGE-1, -2 and -L, for summaries."""


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
    figures: dict[str, Measured | None]  # by name; None where sacrebleu is not installed
    source_steps: float | None = None  # mean steps of a Universal Transformer for each token it reads
    target_steps: float | None = None  # and for each of the right translations

    @property
    def perplexity(self) -> float:
        return math.exp(min(700.0, self.nats))


def judge(
    translator: Translator,
    pairs: PairSet,
    split: str,
    *,
    metric: Metric = "bleu",
    translating: Translating | None = None,
    report: Report = silent,
) -> Judgement:
    """Translate a split and compare."""
    if metric != "bleu":
        check_metric(metric)
    sources, wanted = split_texts(pairs, split)
    translations = [
        best[0] for best in translate(translator, sources, translating=translating, report=report)
    ]
    translated, cut = [one.text for one in translations], sum(one.cut for one in translations)
    exact = sum(ours == theirs for ours, theirs in zip(translated, wanted, strict=True)) / len(wanted)
    figures: dict[str, Measured | None] = {"BLEU": None, "chrF": None}
    with suppress(InputError):  # without sacrebleu
        figures = {**measured(metric, translated, wanted, lower=translator.lower)}
    reading = read_split(translator.model, pairs, split)
    return Judgement(
        len(wanted), reading.nats, exact, cut, figures, reading.source_steps, reading.target_steps
    )


def split_texts(pairs: PairSet, split: str) -> tuple[list[bytes], list[str]]:
    """The sources of a split, and the right translations, both whole."""
    sides = list(pairs.texts(split))
    return [source for source, _ in sides], [target.decode(errors="replace") for _, target in sides]


class SplitReading(NamedTuple):
    """Means over the tokens of the right translations, ends included; and over those of the sources."""

    nats: float  # without smoothing
    source_steps: float | None = None  # None: the model does not count steps
    target_steps: float | None = None


def split_nats(model: EncoderDecoder | Engine[Any], pairs: PairSet, split: str) -> float:
    """Nats per token of the right translations, ends included, without smoothing."""
    return read_split(model, pairs, split).nats


@torch.no_grad()
def read_split(model: EncoderDecoder | Engine[Any], pairs: PairSet, split: str) -> SplitReading:
    """Read the right translations of a split."""
    begin, engine = pairs.split(split).begin, model.frozen()
    device, universal = engine.device, engine.model if isinstance(engine.model, UniversalSeq2Seq) else None
    nats, tokens, counts = 0.0, 0, [MeanSteps(), MeanSteps()]
    for numbers in longest_first(pairs.lengths(split), BUDGET):
        batch = batch_of(pairs, begin + numbers)
        memory, written = (
            engine.start(batch.source.to(device, non_blocking=True), batch.source_lengths),
            batch.decoder_input,
        )
        if universal is None:
            hidden, _ = engine(written.to(device, non_blocking=True), memory, lengths=batch.target_lengths)
        else:
            hidden, _, own = universal.pondered(
                written.to(device, non_blocking=True), memory, lengths=batch.target_lengths
            )
            counts = [counts[0].counted(memory.pondering.steps), counts[1].counted(own.steps)]
        targets = batch.targets.to(device, non_blocking=True)
        surprise = engine.nats(hidden, targets.clamp(min=0)).masked_fill(targets < 0, 0)
        nats, tokens = nats + surprise.double().sum().item(), tokens + int((targets >= 0).sum())
    return SplitReading(nats / tokens, *(count.mean for count in counts))


def check_metric(metric: Metric) -> None:
    """Raise an error if the package that computes the metric is missing: before translating, which takes long."""
    measured(metric, ["a"], ["a"])


def measured(
    metric: Metric, translated: Sequence[str], wanted: Sequence[str], *, lower: bool = False
) -> dict[str, Measured]:
    """The figures of a metric by their names. ROUGE ignores case anyway."""
    if metric == "rouge":
        return rouge(translated, wanted)
    return {"BLEU": bleu(translated, wanted, lower=lower), "chrF": chrf(translated, wanted, lower=lower)}


def bleu(translated: Sequence[str], wanted: Sequence[str], *, lower: bool = False) -> Measured:
    return _by_sacrebleu("BLEU", translated, wanted, lower)


def chrf(translated: Sequence[str], wanted: Sequence[str], *, lower: bool = False) -> Measured:
    return _by_sacrebleu("CHRF", translated, wanted, lower)


def _by_sacrebleu(name: str, translated: Sequence[str], wanted: Sequence[str], lower: bool) -> Measured:
    try:
        from sacrebleu import metrics
    except ImportError:
        raise InputError("BLEU and chrF need the mt extra: pip install 'segue-lm[mt]'") from None
    metric = getattr(metrics, name)(lowercase=lower)
    score = metric.corpus_score(list(translated), [list(wanted)]).score
    return Measured(float(score), str(metric.get_signature()))


def rouge(written: Sequence[str], wanted: Sequence[str]) -> dict[str, Measured]:
    """ROUGE-1, ROUGE-2 and ROUGE-L of summaries in English: mean F1 in percent, by rouge-score with stemming."""
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise InputError("ROUGE needs the rouge extra: pip install 'segue-lm[rouge]'") from None
    kinds = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
    scorer = rouge_scorer.RougeScorer(list(kinds.values()), use_stemmer=True)
    scores = [scorer.score(theirs, ours) for ours, theirs in zip(written, wanted, strict=True)]
    signature = f"nrefs:1|f1:mean|stem:yes|tok:a-z0-9|rouge-score:{version('rouge_score')}"
    return {
        name: Measured(100 * fmean(score[kind].fmeasure for score in scores), signature)
        for name, kind in kinds.items()
    }
