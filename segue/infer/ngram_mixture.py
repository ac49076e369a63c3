"""A language model mixed with the n-grams of its training text: p = Σ g_n p_n + g p_model.

p_n is the share of a token among all that followed the last n - 1 tokens in the training split: it is counted, not
learned. The shares g are the output of a small network, the gate, which sees how often each context was counted and how
many different tokens followed it. The gate is fitted on the validation split, whose text was not counted; counts of a
text look far too sure to itself. Letters: P places, N orders.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from segue.config import Reading, Settings
from segue.errors import InputError
from segue.infer.evaluate import Score, scored, surprises_by_place, targets_of
from segue.nn.engine import Engine
from segue.nn.language import LanguageModel
from segue.progress import Report, silent
from segue.text.corpus import Corpus, Stream
from segue.text.ngram_counts import NGramCounts, count_ngrams

BLOCK = 1 << 16
"""Places that are looked up at a time."""


class Mixture(Settings):
    """How n-grams are mixed in."""

    order: PositiveInt = Field(6, le=16)
    lanes: PositiveInt = 1
    fitted: PositiveInt = 200_000  # tokens of the validation split, at most
    steps: PositiveInt = 1500  # of the gate
    batch: PositiveInt = 4096
    learning_rate: float = Field(5e-3, gt=0)
    width: PositiveInt = 48


@dataclass(frozen=True, kw_only=True)
class MixedScore(Score):
    """The score with n-grams, beside that of the model alone."""

    order: int
    alone: Score
    share: float  # the model's, on average


class Counted(NamedTuple):
    """What was counted about each target: (P, 2 N), (P, N) and (P, N)."""

    features: Tensor  # how often each context was seen, and how many different tokens followed it
    logprobs: Tensor
    seen: Tensor  # whether the context was ever seen

    def at(self, places: Tensor) -> "Counted":
        return Counted(*(part[places] for part in self))


class Gate(nn.Module):
    """The shares of the orders and of the model."""

    def __init__(self, orders: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 * orders, width), nn.ReLU(), nn.Linear(width, orders + 1)
        ).double()

    def logshares(self, counted: Counted) -> Tensor:
        """(P, N + 1) The model's share is the last. A context that was never seen gets none."""
        possible = torch.cat([counted.seen, torch.ones_like(counted.seen[:, :1])], dim=1)
        logits: Tensor = self.layers(counted.features)
        return logits.masked_fill(~possible, -math.inf).log_softmax(dim=1)

    def forward(self, counted: Counted, nats: Tensor) -> Tensor:
        """(P,) The cross-entropy of the mixture, from that of the model."""
        logprobs = torch.cat([counted.logprobs, -nats[:, None]], dim=1)
        return -(self.logshares(counted) + logprobs).logsumexp(dim=1)


def look_up(counts: NGramCounts, ids: np.ndarray[Any, Any], begin: int, end: int) -> Counted:
    """What was counted about the tokens from `begin` to `end` of a text."""
    first = max(0, begin - len(counts.levels) + 1)
    found = counts.lookup(np.asarray(ids[first:end]), begin - first)
    contexts, continuations = (
        torch.from_numpy(part).double() for part in (found.contexts, found.continuations)
    )
    targets = torch.from_numpy(found.targets).double()
    features = torch.cat([contexts, continuations], dim=1).log1p() / 4
    return Counted(features, (targets / contexts.clamp(min=1)).log(), contexts > 0)


def fitted_gate(
    counts: NGramCounts, stream: Stream, nats: Tensor, mixture: Mixture, report: Report = silent
) -> Gate:
    """The gate with which the mixture predicts a stream best, given the cross-entropy of the model there."""
    known = look_up(counts, stream.ids, 1, len(nats) + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        gate = Gate(mixture.order, mixture.width)
        optimizer = torch.optim.Adam(gate.parameters(), mixture.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, mixture.steps)
        for step in range(mixture.steps):
            places = torch.randint(len(nats), (mixture.batch,))
            gate(known.at(places), nats[places]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            report("fitting the gate", (step + 1) * mixture.batch, mixture.steps * mixture.batch)
    return gate


def evaluate_mixed(
    model: LanguageModel | Engine[Any],
    corpus: Corpus,
    split: str,
    reading: Reading,
    mixture: Mixture,
    *,
    limit: int | None = None,
    report: Report = silent,
) -> MixedScore:
    """Score a split that was neither counted nor used to fit the gate."""
    if split in ("train", "valid"):
        raise InputError(
            f"n-grams are counted in the split train and weighed in valid, so {split} would look better than it is; "
            "score another split"
        )
    training, validation, stream = (corpus.stream(name) for name in ("train", "valid", split))
    wanted = targets_of(stream, limit)  # says at once what is wrong with them
    if len(validation.ids) < 2:
        raise InputError("n-grams are weighed in the split valid, which has no two tokens here")
    counts = count_ngrams(training.ids, corpus.header.vocab, mixture.order, report)

    def surprises(of: Stream, total: int) -> Tensor:
        return surprises_by_place(model, of, reading, total, lanes=mixture.lanes, report=report)

    gate = fitted_gate(
        counts, validation, surprises(validation, targets_of(validation, mixture.fitted)), mixture, report
    )
    nats, total, shares = surprises(stream, wanted), 0.0, 0.0
    with torch.no_grad():
        for begin in range(0, len(nats), BLOCK):
            own = nats[begin : begin + BLOCK]
            known = look_up(counts, stream.ids, begin + 1, begin + 1 + len(own))
            total += gate(known, own).sum().item()
            shares += gate.logshares(known)[:, -1].exp().sum().item()
    mixed, alone = (scored(stream, nat, len(nats)) for nat in (total, nats.sum().item()))
    return MixedScore(
        mixed.nats,
        mixed.tokens,
        mixed.bytes,
        mixed.words,
        order=mixture.order,
        alone=alone,
        share=shares / len(nats),
    )
