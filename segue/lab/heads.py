"""Heads learn syntax and meaning: which heads of a trained encoder follow a relation between words.

For each relation a head is chosen on one half of labelled sentences and judged on the other, whose templates and words
it has not seen. The same is done with fresh and with shuffled weights, and with the best fixed distance.
Letters: N layers, H heads.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from segue.checkpoint import TextEncoder, load, task_of
from segue.interop.encoders import load_encoder
from segue.lab.cache import cached
from segue.lab.drawing import HEAT, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.likelihood import likelihood_judges, measured_likelihoods, tell_likelihoods
from segue.lab.probes import AMBIGUITIES, PROBES, Example, ReadingPair, drawn, vocabulary
from segue.lab.shares import CONDITION, ahead, listed
from segue.lab.trained import named
from segue.lab.word_attention import (
    head_name,
    random_encoder,
    shuffled,
    untrained,
    weights_digest,
    word_weights,
)

COUNTS = {True: 20, False: 120}
"""Sentences of each half of a probe, quick or not."""

CONTROL_SEED = 1000

CONTROLS: dict[str, Callable[[TextEncoder, int], TextEncoder]] = {
    "untrained": untrained,
    "shuffled": shuffled,
}


@dataclass(frozen=True)
class Chosen:
    """The best of several ways on the first half, and how often it is right on the second."""

    place: int
    right: float


def chosen(first: Tensor, second: Tensor) -> Chosen:
    """Of the shares of right answers (ways,) on both halves."""
    place = int(first.argmax())
    return Chosen(place, float(second[place]))


def answers(weights: Sequence[Tensor], examples: Sequence[Example]) -> Tensor:
    """(N H,) The share of sentences in which a head attends to the target more than to any other candidate."""
    right = []
    for looks, example in zip(weights, examples, strict=True):
        others = [place for place in example.candidates if place != example.target]
        right.append(looks[:, example.target] > looks[:, others].amax(dim=-1))
    return torch.stack(right).double().mean(dim=0)


def offset_answers(examples: Sequence[Example], offsets: Sequence[int]) -> Tensor:
    """(offsets,) The same for the candidate that is nearest to a fixed distance from the query."""

    def answer(example: Example, offset: int) -> int:
        return min(example.candidates, key=lambda place: abs(place - example.query - offset))

    right = [[answer(example, offset) == example.target for example in examples] for offset in offsets]
    return torch.tensor(right).double().mean(dim=1)


OFFSETS = sorted(range(-16, 17), key=abs)  # of equally good ones the nearest is chosen


def measure(setting: Setting) -> Results:
    encoder, count = _encoder(setting), COUNTS[setting.quick]
    seeds = [CONTROL_SEED + seed for seed in setting.seeds]  # not those of the encoder itself
    judges = likelihood_judges(setting, encoder, seeds)  # first: a run that cannot judge is found at once
    read = {"trained": [_answered(setting, encoder, count)]}
    for number, (name, control) in enumerate(CONTROLS.items()):
        setting.report("controls", number, len(CONTROLS))
        read[name] = [_answered(setting, control(encoder, seed), count) for seed in seeds]
    return {
        "encoder": {
            "name": "random weights" if setting.encoder is None else setting.encoder.name,
            "layers": encoder.model.config.layers,
            "heads": encoder.model.config.heads,
        },
        "trained": setting.encoder is not None,
        "sentences": count,
        "probes": {
            name: {
                "asks": probe.asks,
                "positional": probe.positional,
                **_baselines(probe.examples, count, setting.seed),
                **{who: [one["probes"][name] for one in many] for who, many in read.items()},
            }
            for name, probe in PROBES.items()
        },
        "ambiguity": {
            name: {who: [one["ambiguity"][name] for one in many] for who, many in read.items()}
            for name in AMBIGUITIES
        },
        "likelihood": measured_likelihoods(setting, judges, count),
    }


def _encoder(setting: Setting) -> TextEncoder:
    return random_encoder(vocabulary(), setting.seed) if setting.encoder is None else setting.text_encoder


def inputs(setting: Setting) -> Results:
    """The encoder and the language models, for the record."""
    encoder = setting.encoder
    return {
        "encoder": encoder and {"name": encoder.name, "weights": weights_digest(setting.text_encoder.model)},
        "runs": {name: _facts(run) for name, run in named(setting.runs).items()},
    }


def _facts(run: Path) -> Results:
    bundle = (load_encoder if task_of(run) == "encoding" else load)(run)
    return {"weights": weights_digest(bundle.model), "reading": bundle.reading.model_dump(mode="json")}


def _answered(setting: Setting, encoder: TextEncoder, count: int) -> Results:
    """The chosen head of every probe and ambiguity; from the cache if these weights were read before."""
    key = {"weights": weights_digest(encoder.model), "count": count, "seed": setting.seed}
    answered: Results = cached(setting, __name__, key, lambda: _read(setting, encoder, count))
    return answered


def _read(setting: Setting, encoder: TextEncoder, count: int) -> Results:
    probes, ambiguity = {}, {}
    for number, (name, probe) in enumerate(PROBES.items()):
        setting.report("reading sentences", number, len(PROBES) + len(AMBIGUITIES))
        halves = [drawn(probe.examples, half, count, setting.seed) for half in (0, 1)]
        shares = [answers(_looks(encoder, examples), examples) for examples in halves]
        best = chosen(*shares)
        probes[name] = {"head": best.place, "right": best.right, "second half": shares[1].tolist()}
    for number, (name, pairs) in enumerate(AMBIGUITIES.items()):
        setting.report("reading sentences", len(PROBES) + number, len(PROBES) + len(AMBIGUITIES))
        shares = [differs(encoder, drawn(pairs, half, count, setting.seed)) for half in (0, 1)]
        best = chosen(*shares)
        ambiguity[name] = {"head": best.place, "right": best.right}
    return {"probes": probes, "ambiguity": ambiguity}


def _looks(encoder: TextEncoder, examples: Sequence[Example]) -> list[Tensor]:
    return word_weights(encoder, [one.words for one in examples], [one.query for one in examples])


def differs(encoder: TextEncoder, pairs: Sequence[ReadingPair]) -> Tensor:
    """(N H,) The share of pairs in which a head prefers the verb to the noun more where the verb is meant."""
    sides = []
    for which in ("instrument", "attribute"):
        readings = [getattr(pair, which) for pair in pairs]
        weights = word_weights(encoder, [one.words for one in readings], [one.query for one in readings])
        prefers = [
            looks[:, one.verb].log() - looks[:, one.noun].log()
            for looks, one in zip(weights, readings, strict=True)
        ]
        sides.append(torch.stack(prefers))
    return (sides[0] > sides[1]).double().mean(dim=0)


def _baselines(make: Callable[..., Iterator[Example]], count: int, seed: int) -> Results:
    halves = [drawn(make, half, count, seed) for half in (0, 1)]
    best = chosen(*(offset_answers(examples, OFFSETS) for examples in halves))
    return {
        "offset": {"distance": OFFSETS[best.place], "right": best.right},
        "chance": fmean(1 / len(example.candidates) for example in halves[1]),
    }


def controls(probe: Results) -> dict[str, float]:
    """How often every control is right; of several seeds the best."""
    known = {name: max(one["right"] for one in probe[name]) for name in CONTROLS}
    if not probe.get("positional") and "offset" in probe:
        known["fixed distance"] = probe["offset"]["right"]
    return {**known, "chance": probe.get("chance", 0.5)}


def tell(results: Results) -> list[Block]:
    encoder = results["encoder"]
    weights = (
        f"The encoder is {encoder['name']}, {encoder['layers']} layers of {encoder['heads']} heads."
        if results["trained"]
        else "The encoder here has random weights, so nothing should show: give a trained one with --encoder."
    )
    return [
        "A head is right about a sentence if, of the candidates, the labelled word gets most of its attention. "
        f"The best head on {results['sentences']} sentences is judged on as many others, with other templates "
        "and words. In both, the answer lies near and far equally often. Controls are chosen and judged in the same "
        "way: fresh weights, the trained weights in random order, and the best fixed distance. " + weights,
        *(_verdict(name, probe, results) for name, probe in results["probes"].items()),
        _table(results),
        "“The woman saw the man with the telescope” has two readings: the telescope belongs to the verb or to the "
        "noun. Pairs of sentences differ in one word, which decides. A head tells them apart if “telescope” attends to "
        "the verb, rather than to the noun, more in the reading of the verb. Where nothing decides, the same word "
        "differs, but it says nothing about the telescope.",
        *_ambiguities(results),
        *tell_likelihoods(results["likelihood"]),
    ]


def _verdict(name: str, probe: Results, results: Results) -> Verdict:
    known, best = controls(probe), probe["trained"][0]
    heads = results["encoder"]["heads"]
    return Verdict(
        f"{name.capitalize()}: a head attends from {probe['asks']}.",
        ahead(best["right"], max(known.values()), results["sentences"]),
        f"{head_name(best['head'], heads)} in {100 * best['right']:.0f} % of new sentences; {listed(known)} "
        f"({CONDITION})",
    )


def _ambiguities(results: Results) -> Iterator[Block]:
    heads, kinds = results["encoder"]["heads"], results["ambiguity"]
    undecided = kinds["nothing decides"]["trained"][0]["right"]
    for name in ("context decides", "noun decides"):
        known, best = controls(kinds[name]), kinds[name]["trained"][0]
        if name == "context decides":
            known["nothing decides"] = undecided
        turned = " (less than chance: what told the first half apart is turned round in the second)"
        yield Verdict(
            f"Attention differs between two readings of a sentence ({name}).",
            ahead(best["right"], max(known.values()), results["sentences"]),
            f"{head_name(best['head'], heads)} tells {100 * best['right']:.0f} % of new pairs apart"
            f"{turned if ahead(0.5, best['right'], results['sentences']) else ''}; {listed(known)}",
        )


def _table(results: Results) -> Table:
    heads = results["encoder"]["heads"]
    rows = []
    for name, probe in results["probes"].items():
        known, best = controls(probe), probe["trained"][0]
        rows.append(
            [
                name,
                head_name(best["head"], heads),
                f"{100 * best['right']:.0f} %",
                *(f"{100 * known[control]:.0f} %" for control in CONTROLS),
                "by definition" if probe["positional"] else f"{100 * known['fixed distance']:.0f} %",
                f"{100 * known['chance']:.0f} %",
            ]
        )
    return Table(
        ["relation", "best head", "right", *CONTROLS, "fixed distance", "chance"],
        rows,
        "Chosen on one half, judged on the other; of several untrained or shuffled encoders, the best. Sentences share "
        "patterns and words, so that figures are less sure than those of as many independent ones.",
    )


def draw(results: Results) -> list[Picture]:
    encoder, probes = results["encoder"], results["probes"]
    figure, axes = canvas(2, 3, width=10, height=5.6)
    for axis, (name, probe) in zip(axes, probes.items(), strict=True):
        shares, width = probe["trained"][0]["second half"], encoder["heads"]
        rows = [shares[first : first + width] for first in range(0, len(shares), width)]
        image = axis.imshow(rows, vmin=0, vmax=1, cmap=HEAT, aspect="auto")
        axis.set(title=name, xlabel="head", ylabel="layer")
        axis.set_xticks(range(encoder["heads"]), _numbers(encoder["heads"]), fontsize="x-small")
        axis.set_yticks(range(encoder["layers"]), _numbers(encoder["layers"]), fontsize="x-small")
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes, label="share of right sentences", shrink=0.7)
    caption = "How often each head attends to the labelled word, in the sentences that did not choose it."
    return [Picture("heads", caption, figure)]


def _numbers(count: int) -> list[str]:
    return [f"{number}" for number in range(1, count + 1)]


def _skipped(setting: Setting) -> str:
    if setting.quick or setting.encoder is not None:
        return ""
    return "it reads a trained encoder; give one with --encoder, such as a folder of a BERT"


EXPERIMENT = Experiment(
    name="heads",
    claim="Many attention heads learn different tasks, and appear to follow the syntax and meaning of sentences.",
    measure=measure,
    tell=tell,
    draw=draw,
    inputs=inputs,
    skipped=_skipped,
    version=2,
)
