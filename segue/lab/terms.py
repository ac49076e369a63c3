"""The terms of attention scores: train without each of them, and with each of them alone.

Transformer-XL's score of a query q and a key k at a distance with sinusoid r is a sum: (a) q·k, (b) q·r, (c) u·k,
(d) v·r. Absolute positions p, added to the inputs x of a layer, give four terms as well: x·x, x·p, p·x and p·p, each
through the layer's projections of queries and keys. Letters: B lanes, T queries, S keys, H heads, D head width.
"""

import math
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from segue.config import Reach, XLConfig
from segue.lab.cache import cached
from segue.lab.experiment import Experiment, Results, Setting
from segue.lab.terms_page import NAMES, TERMS, draw, tell
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.attention import Attention, relative_shift
from segue.nn.mask import AttentionMask
from segue.nn.positions import Relative, RelativeKeys, sinusoids
from segue.nn.xl import TransformerXL
from segue.text.corpus import Stream
from segue.text.lanes import Lanes

SETS = (TERMS, *(TERMS.replace(one, "") for one in TERMS), *TERMS)
"""The terms that a variant keeps: all, all but one, one alone."""

LEARNING_RATES = (5e-3, 1e-2)
"""Muon's learning rates that every variant tries for a quarter of the steps; the quick version takes the second."""


@dataclass(frozen=True)
class Sizes:
    """The budget of every variant."""

    steps: int
    width: int
    layers: int
    scored: int  # tokens of the test split
    lanes: int = 16
    segment: int = 64


QUICK, FULL = Sizes(40, 32, 2, 4096), Sizes(800, 128, 3, 32_768, lanes=32)


class SomeTerms(Attention):
    """Attention whose scores are the sum of some of the four terms."""

    kept = TERMS

    def forward(
        self, hidden: Tensor, keys_values: Tensor, relative: Relative | None, mask: AttentionMask
    ) -> Tensor:
        query = self.query(hidden).unflatten(-1, (self.heads, -1))
        key, value = keys_values
        if isinstance(relative, RelativeKeys):
            scores = relative_scores(query, key, relative, self.kept)
        else:
            scores = self._absolute_scores(query, key)
        seen = mask.dense(scores.device)
        weights = (scores * self.scale).masked_fill(~seen, float("-inf")).softmax(dim=-1)
        out: Tensor = self.out(torch.einsum("bhts,sbhd->tbhd", weights, value).flatten(2))
        return out

    def _absolute_scores(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, H, T, S) The kept products of inputs and absolute positions, which restart in every segment."""
        places = sinusoids(torch.arange(len(key)), self.query.in_features, query.dtype)[:, None]
        asking = self.query(places).unflatten(-1, (self.heads, -1))
        to_inputs = _asked(query, asking, "a" in self.kept, "c" in self.kept)
        to_places = _asked(query, asking, "b" in self.kept, "d" in self.kept)
        by_input = torch.einsum("tbhd,sbhd->bhts", to_inputs, key)
        return by_input + torch.einsum("tbhd,shd->bhts", to_places, self.project(places)[0, :, 0])


def relative_scores(query: Tensor, key: Tensor, relative: RelativeKeys, kept: str) -> Tensor:
    """(B, H, T, S) The sum of the kept ones of Transformer-XL's terms (a) to (d), before scaling."""
    scores = query.new_zeros(())
    if "a" in kept or "c" in kept:
        to_keys = _asked(query, relative.content_bias, "a" in kept, "c" in kept)
        scores = scores + torch.einsum("tbhd,sbhd->bhts", to_keys, key)
    if "b" in kept or "d" in kept:
        to_rows = _asked(query, relative.position_bias, "b" in kept, "d" in kept)
        rows = relative.rows[len(relative.rows) - len(key) :]
        scores = scores + relative_shift(torch.einsum("tbhd,rhd->bhtr", to_rows, rows))
    return scores


def _asked(query: Tensor, bias: Tensor, by_query: bool, by_bias: bool) -> Tensor:
    """(T, B, H, D) What asks one kind of keys: queries, a bias for all of them, both, or nothing."""
    return query * by_query + bias * by_bias


def built(config: XLConfig, kept: str, seed: int) -> TransformerXL:
    """A Transformer-XL whose attention has some of its terms only, with the weights of that seed."""
    torch.manual_seed(seed)
    model = TransformerXL(config)
    for part in model.modules():
        if isinstance(part, Attention):
            part.__class__ = SomeTerms
            part.kept = kept  # type: ignore[assignment]
    return model


def measure(setting: Setting) -> Results:
    size = QUICK if setting.quick else FULL
    names = ("xl",) if setting.quick else tuple(NAMES)
    sides = {side: {kept: _variant(setting, side, kept, size) for kept in SETS} for side in names}
    return {"steps": size.steps, "tokens": size.steps * size.lanes * size.segment, "sides": sides}


def _variant(setting: Setting, side: str, kept: str, size: Sizes) -> Results:
    short = replace(size, steps=max(1, size.steps // 4))
    tries = (
        {}
        if setting.quick
        else {rate: _bits(setting, side, kept, short, rate, setting.seed, "valid") for rate in LEARNING_RATES}
    )
    rate = min(tries, key=tries.__getitem__) if tries else LEARNING_RATES[-1]
    bits = [_bits(setting, side, kept, size, rate, seed, "test") for seed in setting.seeds]
    return {"learning_rate": rate, "tries": {f"{one:g}": value for one, value in tries.items()}, "bits": bits}


def _bits(setting: Setting, side: str, kept: str, size: Sizes, rate: float, seed: int, split: str) -> float:
    """Bits per token of one trained model; from the cache if it was trained before."""
    inputs = {
        "side": side,
        "terms": kept,
        "learning_rate": rate,
        "seed": seed,
        "split": split,
        **asdict(size),
    }
    return float(
        cached(
            setting,
            __name__,
            inputs,
            lambda: {"bits": _trained(setting, side, kept, size, rate, seed, split)},
        )["bits"]
    )


def _trained(
    setting: Setting, side: str, kept: str, size: Sizes, rate: float, seed: int, split: str
) -> float:
    config = XLConfig(
        vocab=setting.corpus.header.vocab,
        width=size.width,
        layers=size.layers,
        heads=4,
        encoding="xl" if side == "xl" else "none",
    )
    model, reach = built(config, kept, seed), Reach(memory=size.segment if side == "xl" else 0)
    lanes = Lanes(setting.stream("train"), size.lanes, documents=False)
    memory = model.start(lanes=size.lanes, reach=reach)

    def loss(step: int) -> Tensor:
        nonlocal memory
        segment = lanes.segment(step * size.segment, size.segment)
        hidden, memory = model(segment.tokens, memory)
        return model.nats(hidden, segment.targets).mean()

    label = f"{side} with {', '.join(NAMES[side][one] for one in kept)}, seed {seed}"
    optimize(model, short_schedule(size.steps, rate), loss, label=label, report=setting.report)
    return scored(model, setting.stream(split), reach, size)


@torch.no_grad()
def scored(model: TransformerXL, stream: Stream, reach: Reach, size: Sizes) -> float:
    """Bits per token of a stream's beginning, in lanes that are read on; the first segment is not counted."""
    lanes = Lanes(stream, size.lanes, documents=False)
    memory = model.eval().start(lanes=size.lanes, reach=reach)
    nats: list[Tensor] = []
    for place in range(0, size.scored // size.lanes, size.segment):
        segment = lanes.segment(place, size.segment)
        hidden, memory = model(segment.tokens, memory)
        nats.append(model.nats(hidden, segment.targets).double().mean())
    return torch.stack(nats[1:] or nats).mean().item() / math.log(2)


EXPERIMENT = Experiment(
    name="terms",
    claim="Each of the four terms of relative attention is needed: content, distance by content, two biases.",
    measure=measure,
    tell=tell,
    draw=draw,
)
