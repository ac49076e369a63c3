"""Transformer against RNN encoder-decoders on translation: the same pairs, tokens, parameters and tuning effort.

Each side tries as many settings of its optimizer on the validation split. RNNs read the source in both directions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from segue.errors import InputError
from segue.infer.judge import check_metric
from segue.lab.cache import cached
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.record import machine
from segue.lab.statistics import always_lower, mean, plus_minus, seed_count
from segue.lab.threads import on_threads
from segue.lab.translators import (
    FULL,
    QUICK,
    SIDES,
    Sizes,
    batch_loss,
    config_of,
    random_batch,
    scores,
    trained,
    tries_of,
    validation_nats,
)
from segue.nn.models import build_translator
from segue.training.objective import PairObjective

MARGIN = 1.0
"""BLEU: a smaller difference does not count."""

TIMED = ("Transformer", "RNN with attention", "RNN without attention")


def measure(setting: Setting) -> Results:
    size = QUICK if setting.quick else FULL
    header = setting.pair_set.header
    split = "test" if "test" in header.splits else "valid"
    rows: dict[str, Results] = {}
    for name, side in SIDES.items():
        tries = _tries(setting, name, size)
        chosen = _chosen(setting, name, size, split, tries)
        tried = settings_of(chosen)
        rows[name] = {
            "tries": tries,
            "chosen": chosen,
            "parameters": sum(
                weight.numel()
                for weight in build_translator(config_of(side, size, setting.pair_set)).parameters()
            ),
            "seeds": [_reached(setting, name, size, tried, seed, split) for seed in setting.seeds],
        }
    return {
        **asdict(size),
        "split": split,
        "pairs": header.splits["train"].pairs,
        "vocab": header.vocab,
        "sides": rows,
        "times": _times(setting, size),
    }


def inputs(setting: Setting) -> Results:
    """The pairs, for the record."""
    return {"pairs": dict(setting.pair_set.header.checksums)}


def _tries(setting: Setting, name: str, size: Sizes) -> list[Results]:
    """The optimizer settings with their validation losses after a quarter of the steps; the quick version has one."""
    tries = tries_of(SIDES[name])
    if setting.quick:
        return [{**tries[0], "nats": 0.0}]
    short = replace(size, steps=max(1, size.steps // 4))

    def nats(tried: dict[str, Any]) -> float:
        label = f"{name}, {tried['optimizer']} at {tried['learning_rate']:g}"
        model, _, _ = trained(setting, SIDES[name], short, tried, setting.seed, label)
        return validation_nats(setting, model)

    def tuned(tried: dict[str, Any]) -> Results:
        key = {"side": name, **tried, "tuning": True}
        return {**tried, "nats": _cached(setting, short, key, lambda: nats(tried))}

    return [tuned(tried) for tried in tries]


def _chosen(setting: Setting, name: str, size: Sizes, split: str, tries: list[Results]) -> Results:
    """The better of the best two tries, by validation loss after all steps: a quarter of them favours high rates."""
    finalists = sorted(tries, key=lambda one: float(one["nats"]))[:2]
    if len(finalists) == 1:
        return finalists[0]
    for one in finalists:
        reached = _reached(setting, name, size, settings_of(one), setting.seed, split)
        one["whole"] = reached["averaged"]["nats"]
    return min(finalists, key=lambda one: float(one["whole"]))


def settings_of(tried: Results) -> Results:
    return {key: tried[key] for key in ("optimizer", "learning_rate")}


def _cached(setting: Setting, size: Sizes, key: Results, compute: Callable[[], Any]) -> Any:
    """By the pairs too: `cached` knows the corpus alone."""
    return cached(setting, __name__, {**key, **asdict(size), **inputs(setting)}, compute)


def _reached(
    setting: Setting, name: str, size: Sizes, tried: dict[str, Any], seed: int, split: str
) -> Results:
    """What one trained model reaches, with its last weights and with the mean of its last snapshots."""

    def compute() -> Results:
        model, average, seconds = trained(setting, SIDES[name], size, tried, seed, f"{name}, seed {seed}")
        last = {"nats": validation_nats(setting, model), **scores(setting, model, split, size.tested)}
        average.load()
        averaged = {"nats": validation_nats(setting, model), **scores(setting, model, split, size.tested)}
        return {"seconds": seconds, "last": last, "averaged": averaged}

    key = {"side": name, **tried, "seed": seed, "split": split}
    reached: Results = _cached(setting, size, key, compute)
    return reached


def _times(setting: Setting, size: Sizes) -> Results:
    """Seconds of a training step on the same number of tokens, by the length of sentences, on one and two threads."""
    torch.manual_seed(setting.seed)
    by_length = []
    for length in size.lengths:
        works = {name: _step(setting, name, size, length) for name in TIMED}
        key = {"timed": length, "machine": machine(), "seed": setting.seed}
        by_length.append(_cached(setting, size, key, lambda: on_threads(works, size.repeats)))  # noqa: B023
    return {
        name: {turn: [one[name][turn] for one in by_length] for turn in by_length[0][name]} for name in TIMED
    }


def _step(setting: Setting, name: str, size: Sizes, length: int) -> Callable[[], object]:
    model = build_translator(config_of(SIDES[name], size, setting.pair_set)).train()
    objective = PairObjective(model, SIDES[name].smoothing)
    batch = random_batch(setting.pair_set, length, size.tokens)

    def step() -> None:
        batch_loss(objective, batch).backward()
        model.zero_grad()

    return step


def figure(results: Results, name: str, what: str, weights: str = "averaged") -> list[float]:
    """A figure of all seeds."""
    return [float(seed[weights][what]) for seed in results["sides"][name]["seeds"]]


def better(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the left BLEU is higher with every seed, and on average by more than the margin."""
    return always_lower(right, left) and mean(left) - mean(right) > MARGIN


def tell(results: Results) -> list[Block]:
    return [
        f"Translators of about the same size are trained on {results['pairs']:,} sentence pairs for "
        f"{results['steps']} steps of at most {results['tokens']:,} tokens. Every side first tries five "
        "settings of its optimizer for a quarter of the steps and the best two for all of them, and takes the one with "
        "the lowest validation loss; the "
        "published recipe (post-norm, sinusoids, Adam, warm-up, then a rate that falls as 1 / √step; the others' falls "
        "as a cosine) tries five learning rates, with and without each of its parts. RNNs are GRUs that read the "
        "source in both directions. At this scale, the figures tell which model learns faster, not how good it can "
        "become.",
        *_verdicts(results),
        _table(results),
        *_time_blocks(results),
    ]


def _verdicts(results: Results) -> Iterator[Verdict]:
    pairs = [
        ("A Transformer translates better than an RNN with attention.", "Transformer", "RNN with attention"),
        (
            "The Transformer as published translates better than an RNN with attention.",
            "Transformer as published",
            "RNN with attention",
        ),
        (
            "Attention makes an RNN translate better.",
            "RNN with attention",
            "RNN without attention",
        ),
        (
            "Label smoothing improves BLEU.",
            "Transformer as published",
            "as published, without label smoothing",
        ),
        (
            "The published Transformer is better with its warm-up.",
            "Transformer as published",
            "as published, without warm-up",
        ),
    ]
    for claim, one, other in pairs:
        yield _compared(claim, (one, figure(results, one, "bleu")), (other, figure(results, other, "bleu")))
    name = "Transformer as published"
    averaged, last = (figure(results, name, "bleu", weights) for weights in ("averaged", "last"))
    yield _compared("Averaged checkpoints translate better.", ("averaged", averaged), ("last", last))


def _compared(claim: str, left: tuple[str, list[float]], right: tuple[str, list[float]]) -> Verdict:
    sides = ", ".join(f"{name} {plus_minus(values, 1)}" for name, values in (left, right))
    return Verdict(
        claim,
        better(left[1], right[1]),
        f"BLEU: {sides}; {seed_count(left[1])} (shown if higher with all of them, and by more than {MARGIN:g})",
    )


def _table(results: Results) -> Table:
    rows = []
    for name, side in results["sides"].items():
        chosen = side["chosen"]
        rows.append(
            [
                name,
                f"{side['parameters']:,}",
                f"{chosen['optimizer']}, {chosen['learning_rate']:g}",
                plus_minus(figure(results, name, "nats"), 3),
                plus_minus(figure(results, name, "bleu"), 1),
                plus_minus(figure(results, name, "bleu", "last"), 1),
                plus_minus(figure(results, name, "chrf"), 1),
                plus_minus([seed["seconds"] for seed in side["seeds"]], 0),
            ]
        )
    first = next(iter(results["sides"].values()))["seeds"][0]
    return Table(
        [
            "translator",
            "parameters",
            "optimizer",
            "validation nats",
            "BLEU, averaged weights",
            "BLEU, last weights",
            "chrF",
            "training, processor seconds",
        ],
        rows,
        f"The first {results['tested']:,} sentences at most of the {results['split']} split, greedy search, mean ± "
        f"half the range of seeds; nats and chrF of averaged weights. BLEU: {first['averaged']['signature']}.",
    )


def _time_blocks(results: Results) -> Iterator[Block]:
    times, lengths = results["times"], results["lengths"]
    grown = {name: turns["one"][-1] / turns["one"][0] for name, turns in times.items()}
    gains = {name: turns["one"][-1] / turns["two"][-1] for name, turns in times.items()}
    yield Verdict(
        "For the same tokens, a Transformer's step slows down less with the length of sentences than an RNN's.",
        all(grown["Transformer"] < grown[name] for name in TIMED[1:]),
        f"sentences of {lengths[-1]} instead of {lengths[0]} tokens: "
        + ", ".join(f"{name} {ratio:.2f} ×" for name, ratio in grown.items())
        + "; speed-up by a second thread at the longest: "
        + ", ".join(f"{name} {ratio:.2f} ×" for name, ratio in gains.items()),
    )
    rows = [
        [
            name,
            *(
                f"{1e3 * one:.0f} ({one / two:.2f} ×)"
                for one, two in zip(turns["one"], turns["two"], strict=True)
            ),
        ]
        for name, turns in times.items()
    ]
    yield Table(
        ["translator", *(f"{length} tokens" for length in lengths)],
        rows,
        f"Milliseconds of a training step on about {results['tokens']:,} tokens by the length of sentences, on one "
        "thread; in brackets the speed-up by a second one.",
    )


def draw(results: Results) -> list[Picture]:
    canvas_figure, (left, right) = canvas(1, 2, width=10, height=4)
    names = list(results["sides"])
    values = [mean(figure(results, name, "bleu")) for name in names]
    left.barh(names[::-1], values[::-1])
    left.set(xlabel="BLEU")
    for name, turns in results["times"].items():
        right.loglog(results["lengths"], [1e3 * one for one in turns["one"]], "o-", label=name)
    right.set(xlabel="length of sentences", ylabel="ms per step, one thread")
    right.set_xticks(results["lengths"], [f"{length}" for length in results["lengths"]])
    right.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    right.legend(fontsize="x-small")
    caption = (
        "BLEU after the same training, and the time of a step on the same tokens by the length of sentences."
    )
    return [Picture("translation", caption, canvas_figure)]


def _skipped(setting: Setting) -> str:
    if setting.pairs is None:
        return "it needs sentence pairs; prepare some with segue prepare-pairs and give them with --pairs"
    try:
        check_metric("bleu")
    except InputError as error:
        return str(error)
    return ""


EXPERIMENT = Experiment(
    name="translation",
    version=2,
    claim="The Transformer translates better than recurrent encoder-decoders, after less training.",
    measure=measure,
    tell=tell,
    draw=draw,
    inputs=inputs,
    skipped=_skipped,
)
