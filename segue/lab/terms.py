"""The terms of attention scores: train without each of them, and with each of them alone.

Transformer-XL's score of a query q and a key k at a distance with sinusoid r is a sum: (a) q·k, (b) q·r, (c) u·k,
(d) v·r. Absolute positions p, added to the inputs x of a layer, give four terms as well: x·x, x·p, p·x and p·p, each
through the layer's projections of queries and keys. Letters: B lanes, T queries, S keys, H heads, D head width.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from segue.config import Reach, XLConfig
from segue.lab.cache import cached
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import fewer_bits, mean, plus_minus, seed_count, signed_plus_minus
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.attention import Attention, relative_shift
from segue.nn.mask import AttentionMask
from segue.nn.positions import Relative, RelativeKeys, sinusoids
from segue.nn.xl import TransformerXL
from segue.text.corpus import Stream
from segue.text.lanes import Lanes

TERMS = "abcd"
NAMES = {
    "xl": {"a": "(a) q·k", "b": "(b) q·r", "c": "(c) u·k", "d": "(d) v·r"},
    "absolute": {"a": "x·x", "b": "x·p", "c": "p·x", "d": "p·p"},
}
"""The terms of both kinds of attention, in the order of the papers."""

OWNERS = {"xl": "Transformer-XL's", "absolute": "Absolute attention's"}

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


QUICK, FULL = Sizes(40, 32, 2, 4096), Sizes(500, 128, 3, 32_768)


class SomeTerms(Attention):
    """Attention whose scores are the sum of some terms, written out one by one."""

    kept = TERMS

    def forward(
        self, hidden: Tensor, keys_values: Tensor, relative: Relative | None, mask: AttentionMask
    ) -> Tensor:
        query = self.query(hidden).unflatten(-1, (self.heads, -1))
        key, value = keys_values
        terms = (
            relative_terms(query, key, relative)
            if isinstance(relative, RelativeKeys)
            else self._absolute_terms(query, key)
        )
        scores = torch.stack([terms[name].expand(terms["a"].shape) for name in self.kept]).sum(dim=0)
        seen = mask.dense(scores.device)
        weights = (scores * self.scale).masked_fill(~seen, float("-inf")).softmax(dim=-1)
        out: Tensor = self.out(torch.einsum("bhts,sbhd->tbhd", weights, value).flatten(2))
        return out

    def _absolute_terms(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        """The four products of inputs and absolute positions, which restart in every segment."""
        places = sinusoids(torch.arange(len(key)), self.query.in_features, query.dtype)[:, None]
        asking = self.query(places).unflatten(-1, (self.heads, -1))
        answering = self.project(places)[0]
        pairs = {"a": (query, key), "b": (query, answering), "c": (asking, key), "d": (asking, answering)}
        return {
            name: torch.einsum("tbhd,sbhd->bhts", *(_of_all_lanes(side, query.size(1)) for side in pair))
            for name, pair in pairs.items()
        }


def _of_all_lanes(rows: Tensor, lanes: int) -> Tensor:
    return rows.expand(-1, lanes, -1, -1)


def relative_terms(query: Tensor, key: Tensor, relative: RelativeKeys) -> dict[str, Tensor]:
    """(B, H, T, S) Transformer-XL's terms (a) to (d), before scaling. (c) and (d) have one row or lane for all."""
    rows, queries = relative.rows[len(relative.rows) - len(key) :], len(query)
    by_distance = torch.einsum("hd,rhd->hr", relative.position_bias, rows)[:, None].expand(-1, queries, -1)
    return {
        "a": torch.einsum("tbhd,sbhd->bhts", query, key),
        "b": relative_shift(torch.einsum("tbhd,rhd->bhtr", query, rows)),
        "c": torch.einsum("hd,sbhd->bhs", relative.content_bias, key)[:, :, None],
        "d": relative_shift(by_distance)[None],
    }


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
    short = Sizes(max(1, size.steps // 4), size.width, size.layers, size.scored)
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


def tell(results: Results) -> list[Block]:
    sides = results["sides"]
    return [
        "The score of a query and a key is a sum of four terms. What is each of them worth? A model is trained with "
        f"all of them, without each, and with each alone, on {results['tokens']:,} tokens; in the full version every "
        "variant first tries the same two learning rates. Transformer-XL's terms are those of relative attention with "
        "memory; absolute positions restart in isolated segments, and are added in every layer for queries and keys "
        "alone, so that their terms can be taken apart.",
        *(_verdict(side, name, one) for name, side in sides.items() for one in TERMS),
        *(_places_verdict(side, name) for name, side in sides.items()),
        *(_table(side, name) for name, side in sides.items()),
    ]


def _verdict(side: Results, name: str, term: str) -> Verdict:
    complete, without = side[TERMS]["bits"], side[TERMS.replace(term, "")]["bits"]
    return Verdict(
        f"{OWNERS[name]} term {NAMES[name][term]} is worth having.",
        fewer_bits(complete, without),
        f"{plus_minus(complete)} bits with all terms, {plus_minus(without)} without it; {seed_count(complete)}",
    )


def _places_verdict(side: Results, name: str) -> Verdict:
    """The term of places alone, (d), against the term of content alone, (a)."""
    places, content = side["d"]["bits"], side["a"]["bits"]
    return Verdict(
        f"{OWNERS[name]} term of places alone is worth more than its term of content alone.",
        fewer_bits(places, content),
        f"{plus_minus(places)} bits with {NAMES[name]['d']} alone, {plus_minus(content)} with {NAMES[name]['a']} "
        f"alone; {seed_count(places)}",
    )


def _label(name: str, kept: str) -> str:
    if kept == TERMS:
        return "all terms"
    missing = [one for one in TERMS if one not in kept]
    return f"without {NAMES[name][missing[0]]}" if len(missing) == 1 else f"{NAMES[name][kept]} alone"


def _table(side: Results, name: str) -> Table:
    complete = side[TERMS]["bits"]
    rows = [
        [
            _label(name, kept),
            plus_minus(variant["bits"]),
            signed_plus_minus(
                [one - all_terms for one, all_terms in zip(variant["bits"], complete, strict=True)]
            ),
            f"{variant['learning_rate']:g}",
        ]
        for kept, variant in side.items()
    ]
    return Table(
        ["terms", "bits per token", "difference", "learning rate"],
        rows,
        f"{'Transformer-XL' if name == 'xl' else 'Absolute positions'}: test text, mean ± half the range of seeds.",
    )


def draw(results: Results) -> list[Picture]:
    sides = results["sides"]
    figure, axes = canvas(1, len(sides), width=5 * len(sides), height=4)
    for axis, (name, side) in zip(axes, sides.items(), strict=True):
        labels = [_label(name, kept) for kept in side]
        values: Sequence[float] = [mean(variant["bits"]) for variant in side.values()]
        axis.barh(labels[::-1], values[::-1], color=["#4878a8"] * (len(labels) - 1) + ["#2f9e44"])
        axis.set(
            xlabel="bits per token",
            xlim=(0.95 * min(values), 1.02 * max(values)),
            title="Transformer-XL" if name == "xl" else "absolute positions",
        )
    return [Picture("terms", "Bits per token with some of the terms; lower is better.", figure)]


EXPERIMENT = Experiment(
    name="terms",
    claim="Each of the four terms of relative attention is needed: content, distance by content, two biases.",
    measure=measure,
    tell=tell,
    draw=draw,
)
