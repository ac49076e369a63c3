"""Lengths never seen: texts of up to 100 tokens in training, of 200 in the test, by positional encoding.

The targets at places 101 to 200 are predicted twice: reading on from the beginning of the text, so that their places
never occurred in training; and in windows that begin later, so that the same targets are at places 51 to 100. Whoever
reads on has more context, and needs no more bits if its positions generalize. Letters: B texts, T tokens.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from segue.config import ENCODINGS, Reach, XLConfig
from segue.errors import InputError
from segue.lab.cache import cached
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import (
    MARGIN,
    always_lower,
    fewer_bits,
    mean,
    plus_minus,
    seed_count,
    signed_plus_minus,
)
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.xl import TransformerXL
from segue.text.corpus import Stream

SIDES = {
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "xl": "relative (Transformer-XL)",
    "shaw": "relative (Shaw)",
    "rotary": "rotary",
    "alibi": "ALiBi",
    "none": "none",
}
"""Positional encodings and their names on the page."""

LEARNING_RATES = (5e-3, 1e-2)
"""Muon's learning rates that every side tries for a quarter of the steps; the quick version takes the second."""

LEARNED = 0.2
"""Bits per token below the corpus's unigrams: whoever saves less has learned nothing that could generalize."""


@dataclass(frozen=True)
class Sizes:
    """The budget of every side, and the longest text in training; the test has texts of twice that length."""

    steps: int
    width: int
    layers: int
    texts: int  # of the test
    length: int = 100
    lanes: int = 16


QUICK, FULL = Sizes(60, 48, 2, 100, lanes=8), Sizes(600, 128, 3, 400)
QUICK_SIDES = ("learned", "sinusoidal", "xl", "alibi")


def measure(setting: Setting) -> Results:
    size, names = (QUICK, QUICK_SIDES) if setting.quick else (FULL, tuple(SIDES))
    _check_lengths(setting, size)
    return {
        "length": size.length,
        "texts": size.texts,
        "tokens": size.steps * size.lanes * size.length,
        "unigram": unigram_bits(setting.stream("train"), setting.stream("test")),
        "sides": {encoding: _side(setting, encoding, size) for encoding in names},
    }


def unigram_bits(train: Stream, test: Stream) -> float:
    """Bits per token of the test split, by the frequencies of the training split."""
    size = int(max(train.ids.max(), test.ids.max())) + 1
    counts, tested = (np.bincount(stream.ids, minlength=size) for stream in (train, test))
    logs = np.log2((counts + 1) / (counts + 1).sum())
    return float(-(tested * logs).sum() / tested.sum())


def _side(setting: Setting, encoding: str, size: Sizes) -> Results:
    short = Sizes(**{**asdict(size), "steps": max(1, size.steps // 4)})
    tries = (
        {}
        if setting.quick
        else {
            rate: _learned(setting, encoding, short, rate, setting.seed, "valid")["seen"]
            for rate in LEARNING_RATES
        }
    )
    rate = min(tries, key=tries.__getitem__) if tries else LEARNING_RATES[-1]
    seeds = [_learned(setting, encoding, size, rate, seed, "test") for seed in setting.seeds]
    return {
        "learning_rate": rate,
        "tries": {f"{one:g}": value for one, value in tries.items()},
        "seeds": seeds,
    }


def _learned(setting: Setting, encoding: str, size: Sizes, rate: float, seed: int, split: str) -> Results:
    """Bits of one trained model; from the cache if it was trained before."""
    inputs = {"encoding": encoding, "size": asdict(size), "rate": rate, "seed": seed, "split": split}

    def made() -> Results:
        model = _trained(setting, encoding, size, rate, seed)
        return read(model, texts_of(setting.stream(split), size, seed=1_000_003))

    return dict(cached(setting, __name__, inputs, made))


def build(encoding: str, vocab: int, size: Sizes) -> TransformerXL:
    """A Transformer without memory; tables of positions have rows for the test's lengths too, which stay as drawn."""
    rows = {"max_positions": 2 * size.length, "max_distance": size.length}
    table = {name: rows[name] for name in [ENCODINGS[encoding].rows] if name}
    config = XLConfig.model_validate(
        {
            "vocab": vocab,
            "width": size.width,
            "layers": size.layers,
            "heads": 4,
            "encoding": encoding,
            **table,
        }
    )
    return TransformerXL(config)


def _trained(setting: Setting, encoding: str, size: Sizes, rate: float, seed: int) -> TransformerXL:
    torch.manual_seed(seed)
    model, stream = build(encoding, setting.corpus.header.vocab, size), setting.stream("train")
    draw = np.random.default_rng(seed)

    def loss(_step: int) -> Tensor:
        tokens = _cut(stream, draw.integers(len(stream.ids) - size.length, size=size.lanes), size.length)
        return nats(model, tokens).mean()

    label = f"{SIDES[encoding]}, seed {seed}"
    optimize(model, short_schedule(size.steps, rate), loss, label=label, report=setting.report)
    return model.eval()


def texts_of(stream: Stream, size: Sizes, seed: int) -> Tensor:
    """(B, 2 length + 1) Random texts of a split, the same for all."""
    ends = len(stream.ids) - 2 * size.length
    return _cut(stream, np.random.default_rng(seed).integers(ends, size=size.texts), 2 * size.length)


def _check_lengths(setting: Setting, size: Sizes) -> None:
    """Raise an error if a split is shorter than a text: before anything is trained."""
    for split in ("train", "valid", "test"):
        if (count := len(setting.stream(split).ids)) <= 2 * size.length:
            raise InputError(
                f"{setting.data} has a {split} split of {count:,} tokens; the test needs texts of "
                f"{2 * size.length + 1}: give more text"
            )


def _cut(stream: Stream, begins: np.ndarray, length: int) -> Tensor:
    """(B, length + 1) The tokens from each of the places on."""
    return torch.from_numpy(stream.ids[begins[:, None] + np.arange(length + 1)].astype(np.int64))


def nats(model: TransformerXL, tokens: Tensor) -> Tensor:
    """(B, T) The cross-entropy of every token but the first, read at once from position 0."""
    reach = Reach(memory=0, positions="restart" if model.config.position_encoding.counts else "onward")
    hidden, _ = model(tokens[:, :-1], model.start(lanes=len(tokens), reach=reach))
    return model.nats(hidden, tokens[:, 1:])


@torch.no_grad()
def read(model: TransformerXL, texts: Tensor) -> Results:
    """Bits of the targets at the unseen places, of the same targets at seen places, and bits by place."""
    length, half = texts.size(1) // 2, texts.size(1) // 4
    onward, windows = [], []
    for some in texts.split(32):
        onward.append(nats(model, some))
        pieces = (nats(model, some[:, start : start + length + 1]) for start in (half, length))
        windows.append(torch.cat([piece[:, length - half :] for piece in pieces], dim=1))
    whole, seen = torch.cat(onward).double() / math.log(2), torch.cat(windows).double() / math.log(2)
    by_place = whole.mean(dim=0).unflatten(0, (-1, length // 10)).mean(dim=1)
    return {
        "beyond": float(whole[:, length:].mean()),
        "seen": float(seen.mean()),
        "curve": [round(value, 4) for value in by_place.tolist()],
    }


def beyond(side: Results) -> list[float]:
    """Bits of the targets at places beyond the trained length, for each seed."""
    return [one["beyond"] for one in side["seeds"]]


def at_seen_places(side: Results) -> list[float]:
    return [one["seen"] for one in side["seeds"]]


def generalizes(side: Results, unigram: float) -> bool:
    """Whether reading on is not worse than the trained places with any seed, by a model that has learned."""
    far, near = beyond(side), at_seen_places(side)
    learned = all(one < unigram - LEARNED for one in near)
    return learned and all(one < other + MARGIN for one, other in zip(far, near, strict=True))


def tell(results: Results) -> list[Block]:
    sides, length, unigram = results["sides"], results["length"], results["unigram"]
    return [
        f"A Transformer that was trained on texts of up to {length} tokens meets one of {2 * length}. Each model was "
        f"trained on {results['tokens']:,} tokens without memory, and reads {results['texts']} test texts. The targets "
        f"at places {length + 1} to {2 * length} are predicted twice: reading on from the beginning of the text, and "
        f"in windows that begin later, where the same targets are at places {length // 2 + 1} to {length}. Who reads "
        f"on has more context. Positions generalize if that costs less than {MARGIN:g} bits more with every seed, and "
        f"if the model has learned: it must be {LEARNED:g} bits below the {unigram:.2f} of single tokens. The rows of "
        "learned positions beyond the trained length are as they were drawn.",
        *(_verdict(sides[name], SIDES[name], results) for name in sides),
        _gain(sides, results),
        Table(
            ["positions", "trained places", "beyond", "difference", "learning rate"],
            [
                [
                    SIDES[name],
                    plus_minus(at_seen_places(side)),
                    plus_minus(beyond(side)),
                    signed_plus_minus(_differences(side)),
                    f"{side['learning_rate']:g}",
                ]
                for name, side in sides.items()
            ],
            "Bits per token of the same test tokens; mean ± half the range of seeds.",
        ),
    ]


def _differences(side: Results) -> list[float]:
    return [far - near for far, near in zip(beyond(side), at_seen_places(side), strict=True)]


def _verdict(side: Results, label: str, results: Results) -> Verdict:
    differences, length = _differences(side), results["length"]
    name = "No positions at all" if label == "none" else f"{label[0].upper()}{label[1:]} positions"
    return Verdict(
        f"{name} generalize from texts of {length} tokens to texts of {2 * length}.",
        generalizes(side, results["unigram"]),
        f"{plus_minus(beyond(side))} bits per token at places never seen, {plus_minus(at_seen_places(side))} for the "
        f"same targets at trained places; {seed_count(differences)}",
        size=f"{signed_plus_minus(differences)} bits per token",
        sure=seed_count(differences),
    )


def _gain(sides: Results, results: Results) -> Verdict:
    """Whether someone uses the longer text: reading on saves bits."""
    best = min(sides, key=lambda name: mean(_differences(sides[name])))
    far, near = beyond(sides[best]), at_seen_places(sides[best])
    learned = always_lower(near, [results["unigram"] - LEARNED] * len(near))
    return Verdict(
        "Some positions gain from a text longer than any in training.",
        learned and fewer_bits(far, near),
        f"{SIDES[best]} needs {plus_minus(far)} bits per token reading on, {plus_minus(near)} at trained places; "
        f"{seed_count(far)}",
        size=f"{signed_plus_minus(_differences(sides[best]))} bits per token",
        sure=seed_count(far),
    )


def draw(results: Results) -> list[Picture]:
    figure, (axis,) = canvas(width=8, height=4)
    for name, side in results["sides"].items():
        bits = [mean(column) for column in zip(*(one["curve"] for one in side["seeds"]), strict=True)]
        places = [(number + 0.5) * results["length"] / 10 for number in range(len(bits))]
        axis.plot(places, bits, "o-", ms=3, label=SIDES[name])
    axis.axvline(results["length"], color="grey", linewidth=0.8, linestyle=":")
    low = min(min(one["curve"]) for side in results["sides"].values() for one in side["seeds"])
    axis.set(xlabel="place in the text", ylabel="bits per token", ylim=(low - 0.1, results["unigram"] + 1))
    axis.legend(fontsize="small", ncols=2)
    caption = "Bits by place in the text, in tenths of the trained length, which the dotted line marks."
    return [Picture("lengths", caption, figure)]


EXPERIMENT = Experiment(
    name="lengths",
    claim="Sinusoidal and relative positions generalize to texts longer than any in training; learned ones do not.",
    measure=measure,
    tell=tell,
    draw=draw,
)
