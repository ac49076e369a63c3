"""Small translators, trained in memory on prepared pairs: their shapes, how they are trained, and what they reach.

Letters: B pairs, T tokens.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segue.checkpoint import Translator
from segue.config import RecurrentSeq2SeqConfig, Seq2SeqConfig, Translating, TranslationConfig
from segue.infer.judge import bleu, chrf, split_nats, split_texts
from segue.infer.translate import translate
from segue.lab import tuning
from segue.lab.experiment import Results, Setting
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.models import build_translator
from segue.recipe import Schedule
from segue.text.batches import batches
from segue.text.pair_batches import Batch, batch_of
from segue.text.pairs import PairSet
from segue.training.objective import PairObjective
from segue.training.optim import learning_rate_at

SMOOTHING, DROPOUT = 0.1, 0.1
SNAPSHOTS = 5
"""Averaged weights are the mean of so many snapshots in the last fifth of training."""


@dataclass(frozen=True)
class Sizes:
    """The budget that every translator gets."""

    steps: int
    tokens: int  # of either side in a batch
    width: int
    layers: int  # of each side
    recurrent_width: int  # gives an RNN about as many parameters
    tested: int  # sentences that are translated at most
    lengths: tuple[int, ...]  # of sentences whose step is timed
    repeats: int


QUICK = Sizes(30, 256, 16, 1, 24, tested=16, lengths=(8, 32), repeats=1)
FULL = Sizes(600, 1536, 64, 2, 96, tested=1000, lengths=(8, 16, 32, 64, 128), repeats=5)


@dataclass(frozen=True)
class Side:
    """A translator: what it is, and how it is trained besides the tuned settings."""

    kind: str  # transformer, published or rnn
    attention: bool = True
    smoothing: float = SMOOTHING
    warm: bool = True  # the learning rate rises at first


SIDES: dict[str, Side] = {
    "Transformer": Side("transformer"),
    "Transformer as published": Side("published"),
    "RNN with attention": Side("rnn"),
    "RNN without attention": Side("rnn", attention=False),
    "as published, without label smoothing": Side("published", smoothing=0.0),
    "as published, without warm-up": Side("published", warm=False),
}
"""All sides. The RNN reads the source in both directions (GRU). The last two are the second with a part removed."""

TRIES = (*tuning.TRIES, {"optimizer": "muon", "learning_rate": 2e-2})

PUBLISHED_TRIES = tuple(
    {"optimizer": "adam", "learning_rate": rate} for rate in (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
)
"""The published recipe keeps its optimizer, and tries as many learning rates as others try settings."""


def tries_of(side: Side) -> tuple[dict[str, Any], ...]:
    return PUBLISHED_TRIES if side.kind == "published" else TRIES


def config_of(side: Side, size: Sizes, pairs: PairSet) -> TranslationConfig:
    header = pairs.header
    vocabulary: dict[str, Any] = {
        "vocab": header.vocab,
        "source_vocab": header.source_vocab,
        "dropout": DROPOUT,
    }
    if side.kind == "rnn":
        return RecurrentSeq2SeqConfig(
            **vocabulary, width=size.recurrent_width, layers=1, attention=side.attention, bidirectional=True
        )
    published = side.kind == "published"
    return Seq2SeqConfig(
        **vocabulary,
        width=size.width,
        heads=4,
        feedforward=4 * size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        norm="post" if published else "pre",
        encoding="sinusoidal" if published else "xl",
    )


def schedule_of(side: Side, steps: int, tried: dict[str, Any]) -> Schedule:
    """The published recipe warms up over a tenth of the steps and then falls as 1 / √step; others fall as a cosine."""
    if side.kind != "published":
        return short_schedule(steps, **tried)
    return Schedule(
        steps=steps,
        schedule="inverse-sqrt",
        warmup=max(1, steps // 10),
        beta2=0.98,
        epsilon=1e-9,
        clip=1.0,
        **tried,
    )


def without_warm_up(step: int, schedule: Schedule) -> float:
    """The same learning rates, but the highest from the first step until the warm-up would have ended."""
    return learning_rate_at(max(step, schedule.warmup - 1), schedule)


def batch_order(pairs: PairSet, tokens: int, seed: int) -> Iterator[Batch]:
    """Batches of the training split, epoch after epoch."""
    lengths, epoch = pairs.lengths("train"), 0
    begin = pairs.split("train").begin
    while True:
        for numbers in batches(lengths, tokens, seed, epoch):
            yield batch_of(pairs, begin + numbers)
        epoch += 1


def batch_loss(objective: PairObjective, batch: Batch) -> Tensor:
    """Nats per token of the target."""
    nats: Tensor = objective(batch).nats
    return nats.sum() / int((batch.targets >= 0).sum())


class Averaged:
    """The mean of snapshots of a model's weights."""

    def __init__(self, model: EncoderDecoder, steps: int) -> None:
        spacing = max(1, steps // 5 // SNAPSHOTS)
        self._model, self._steps = model, {steps - number * spacing for number in range(SNAPSHOTS)}
        self._sum: dict[str, Tensor] = {}
        self._count = 0

    def after(self, step: int) -> None:
        if step in self._steps:
            self._count += 1
            for name, weight in self._model.state_dict().items():
                self._sum[name] = self._sum[name] + weight if name in self._sum else weight.clone()

    def load(self) -> None:
        """Give the model the mean of its snapshots; without any, since training had to stop, it stays as it is."""
        if self._count:
            self._model.load_state_dict({name: total / self._count for name, total in self._sum.items()})


def trained(
    setting: Setting, side: Side, size: Sizes, tried: dict[str, Any], seed: int, label: str
) -> tuple[EncoderDecoder, Averaged, float]:
    """A trained model, the mean of its last snapshots, and the processor seconds of training."""
    torch.manual_seed(seed)
    model = build_translator(config_of(side, size, setting.pair_set))
    objective, average = PairObjective(model, side.smoothing), Averaged(model, size.steps)
    order, begin = batch_order(setting.pair_set, size.tokens, seed), time.process_time()
    optimize(
        model,
        schedule_of(side, size.steps, tried),
        lambda _step: batch_loss(objective, next(order)),
        label=label,
        report=setting.report,
        after=average.after,
        rate=learning_rate_at if side.warm else without_warm_up,
    )
    return model.eval(), average, time.process_time() - begin


def scores(setting: Setting, model: EncoderDecoder, split: str, tested: int) -> Results:
    """BLEU and chrF of greedy translations of the first sentences of a split."""
    pairs = setting.pair_set
    all_sources, all_references = split_texts(pairs, split)
    sources, references = all_sources[:tested], all_references[:tested]
    greedy = Translating(beam_width=1, longest=min(64, pairs.header.longest))
    translator = Translator(model, greedy, pairs.source, pairs.target, pairs.header.lower)
    texts = [best[0].text for best in translate(translator, sources)]
    lower = pairs.header.lower
    return {
        "bleu": bleu(texts, references, lower=lower).score,
        "chrf": chrf(texts, references, lower=lower).score,
        "signature": bleu(texts, references, lower=lower).signature,
    }


def validation_nats(setting: Setting, model: EncoderDecoder) -> float:
    return split_nats(model, setting.pair_set, "valid")


def random_batch(pairs: PairSet, length: int, tokens: int) -> Batch:
    """Random pairs of one length, as many as the tokens allow."""
    count = max(1, tokens // length)
    draw = torch.Generator().manual_seed(length)
    source, target = (
        torch.randint(high, (count, length), generator=draw)
        for high in (pairs.header.source_vocab or pairs.header.vocab, pairs.header.vocab)
    )
    lengths = torch.full((count,), length)
    return Batch(np.arange(count), source, lengths, target, lengths, target.roll(-1, dims=1))
