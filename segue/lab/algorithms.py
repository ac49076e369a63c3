"""Algorithmic tasks (copy, reverse, parity, addition): trained up to a length, tested up to four times that length.

A text is a question, an equals sign, the answer and a full stop; the loss is on the answer only. An answer is right if
all of its symbols are. Without memory the whole text is one segment; with memory it is read a few tokens at a time,
and earlier tokens are visible only through memory. Letters: B lanes, T tokens.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.config import LanguageConfig, Reach, RecurrentConfig, UniversalConfig, XLConfig
from segue.footprint import parameters
from segue.lab.cache import cached
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.published import published, source
from segue.lab.statistics import always_lower, mean, plus_minus, seed_count
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.halting import ponder_cost
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.nn.universal import UniversalTransformer
from segue.text.tasks import SIZED

VOCAB, WIDTH, LANES, SEGMENT = 128, 64, 64, 8
TRAINED_LENGTH, LENGTH_FACTORS = 5, (0.5, 1, 1.5, 2, 3, 4)
LENGTHS = [int(times * TRAINED_LENGTH) for times in LENGTH_FACTORS]
LONGEST_TEXT = 3 * LENGTHS[-1] + 4
"""Tokens of the longest text: an addition of two numbers with its answer."""


@dataclass(frozen=True)
class ModelSetup:
    """A model's config and how it reads."""

    config: LanguageConfig
    segment: int  # 0: the whole text is one segment
    memory: int


def _transformer(encoding: str, *, memory: bool) -> ModelSetup:
    shape = {"vocab": VOCAB, "width": WIDTH, "layers": 2, "heads": 4, "encoding": encoding}
    if encoding == "learned":
        shape["max_positions"] = LONGEST_TEXT
    return ModelSetup(XLConfig.model_validate(shape), SEGMENT if memory else 0, LONGEST_TEXT if memory else 0)


def _universal(**settings: object) -> ModelSetup:
    """One block of about as many parameters as the other models' two layers."""
    shape = {"vocab": VOCAB, "width": 88, "heads": 4, "feedforward": 352, **settings}
    return ModelSetup(UniversalConfig.model_validate(shape), 0, 0)


MODELS: dict[str, ModelSetup] = {
    "sinusoidal": _transformer("sinusoidal", memory=False),
    "learned": _transformer("learned", memory=False),
    "relative": _transformer("xl", memory=False),
    "sinusoidal, memory": _transformer("sinusoidal", memory=True),
    "learned, memory": _transformer("learned", memory=True),
    "relative, memory": _transformer("xl", memory=True),
    "universal": _universal(steps=4),
    "universal, halting": _universal(steps=8, halting="act"),
    "LSTM": ModelSetup(RecurrentConfig(vocab=VOCAB, width=80, layers=2), 0, 1),
}
UNIVERSAL = ("universal", "universal, halting")
KINDS = {
    "sinusoidal": "A Transformer with sinusoids",
    "learned": "A Transformer with learned positions",
    "relative": "A Transformer with relative positions",
    "universal": "A Universal Transformer",
    "LSTM": "An LSTM",
}
"""The models that have a verdict of their own."""

PONDER = 0.001
"""The weight of the ponder cost, where tokens halt."""

AHEAD = 0.05
"""The share of symbols by which one model must be ahead of another."""

SHARES = ("whole", "symbols")
"""Accuracy by whole answers, and by symbols."""

QUICK = (("copy",), ("sinusoidal", "relative", "relative, memory", "LSTM"))


def measure(setting: Setting) -> Results:
    tasks, names = QUICK if setting.quick else (tuple(SIZED), tuple(MODELS))
    steps, tested = (300, 50) if setting.quick else (1000, 200)
    accuracies = {
        task: {
            name: [_learned(setting, name, task, steps, tested, seed) for seed in setting.seeds]
            for name in names
        }
        for task in tasks
    }
    return {
        "trained": TRAINED_LENGTH,
        "lengths": LENGTHS,
        "steps": steps,
        "lanes": LANES,
        "tested": tested,
        "segment": SEGMENT,
        "parameters": {name: parameters(MODELS[name].config) for name in names},
        "right": accuracies,
    }


def _learned(setting: Setting, name: str, task: str, steps: int, tested: int, seed: int) -> Results:
    """The accuracies of one trained model by length."""
    setup = MODELS[name]

    def shares() -> Results:
        model = _trained(setting, setup, task, steps, seed, f"{name} to {task}, seed {seed}")
        both = [accuracy(setup, model, task, length, tested) for length in LENGTHS]
        return dict(zip(SHARES, zip(*both, strict=True), strict=True))

    shape = [
        setup.config.model_dump(mode="json"),
        setup.segment,
        setup.memory,
        LANES,
        TRAINED_LENGTH,
        LENGTHS,
    ]
    inputs = {
        "task": task,
        "steps": steps,
        "tested": tested,
        "seed": seed,
        "way": shape,
    }
    return dict(cached(setting, __name__, inputs, shares))


def _trained(
    setting: Setting, setup: ModelSetup, task: str, steps: int, seed: int, label: str
) -> LanguageModel:
    torch.manual_seed(seed)
    model, draw = build_language_model(setup.config), random.Random(f"{task} {seed}")  # noqa: S311

    def loss(_step: int) -> Tensor:
        texts = [question(draw, task, draw.randint(1, TRAINED_LENGTH)) for _ in range(LANES)]
        tokens, targets, answers, lengths = padded_batch(texts)
        hidden, ponder = read(setup, model, tokens, lengths)
        return model.nats(hidden[answers], targets[answers]).mean() + PONDER * ponder

    optimize(model, short_schedule(steps, 1e-2), loss, label=label, report=setting.report)
    return model.eval()


def question(draw: random.Random, task: str, length: int) -> tuple[bytes, bytes]:
    asked, answer = SIZED[task](draw, length)
    return asked + b"=", answer + b"."


def padded_batch(texts: Sequence[tuple[bytes, bytes]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A padded batch: tokens and targets (B, T), a mask of the answers (B, T), and the lengths (B,)."""
    lengths = torch.tensor([len(asked) + len(answer) - 1 for asked, answer in texts])
    tokens = torch.zeros(len(texts), int(lengths.max()) + 1, dtype=torch.int64)
    answers = torch.zeros(len(texts), int(lengths.max()), dtype=torch.bool)
    for lane, (asked, answer) in enumerate(texts):
        tokens[lane, : len(asked + answer)] = torch.tensor(list(asked + answer))
        answers[lane, len(asked) - 1 : len(asked + answer) - 1] = True
    return tokens[:, :-1], tokens[:, 1:], answers, lengths


def read(
    setup: ModelSetup, model: LanguageModel, tokens: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor | float]:
    """(B, T, C) Hidden states of a batch of texts, read in segments if the setup says so; and their ponder cost."""
    memory = model.start(lanes=len(tokens), reach=Reach(memory=setup.memory))
    if isinstance(model, UniversalTransformer) and model.config.halts:
        states, _, pondering = model.pondered(tokens, memory, lengths=lengths)
        return states, ponder_cost(pondering)
    hidden = []
    for begin, piece in _pieces(tokens, setup.segment or tokens.size(1)):
        valid = (lengths - begin).clamp(0, piece.size(1))
        states, memory = model(piece, memory, lengths=valid)
        hidden.append(states)
    return torch.cat(hidden, dim=1), 0.0


def _pieces(tokens: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    return ((begin, tokens[:, begin : begin + size]) for begin in range(0, tokens.size(1), size))


@torch.no_grad()
def accuracy(
    setup: ModelSetup, model: LanguageModel, task: str, length: int, count: int
) -> tuple[float, float]:
    """Accuracy of greedy prediction on questions of that length: of whole answers, and of their symbols."""
    draw = random.Random(f"test {task} {length}")  # noqa: S311 (the same questions for all)
    tokens, targets, answers, lengths = padded_batch([question(draw, task, length) for _ in range(count)])
    hidden, _ = read(setup, model, tokens, lengths)
    likeliest = model.logprobs(hidden).argmax(dim=-1)
    same = likeliest == targets
    return float((same | ~answers).all(dim=1).double().mean()), float(same[answers].double().mean())


def tell(results: Results) -> list[Block]:
    accuracies, lengths, trained = results["right"], results["lengths"], results["trained"]
    within, last = lengths.index(trained), len(lengths) - 1
    tasks, beyond = list(accuracies), range(within + 1, len(lengths))

    def at(name: str, places: Sequence[int], what: str = "whole") -> list[float]:
        """The mean accuracy over all tasks, for each seed."""
        seeds = zip(*(accuracies[task][name] for task in tasks), strict=True)
        return [mean([one[what][place] for one in group for place in places]) for group in seeds]

    names = list(accuracies[tasks[0]])
    learned = [name for name in names if mean(at(name, [within])) > 0.5]
    memory, once = (at(name, [within]) for name in ("relative, memory", "relative"))
    return [
        "A model that has learned an algorithm can apply it at any length. Each model is trained on questions of up to "
        f"{trained} symbols, for {results['steps']} steps of {results['lanes']} questions, and tested on longer ones. "
        "Neither absolute positions nor distances beyond the trained length occur in training. Parity is written "
        "after every bit, and sums column by column, so that each symbol of an answer needs little computation.",
        Verdict(
            "Models that answer questions of the trained length also answer questions four times as long.",
            bool(learned) and all(mean(at(name, [last])) > 0.5 for name in learned),
            f"right answers at {trained} symbols: {_shares({name: at(name, [within]) for name in names})}; "
            f"at {lengths[last]}: {_shares({name: at(name, [last]) for name in names})}",
            size=f"{sum(mean(at(name, [last])) > 0.5 for name in learned)} of {len(learned)} models that have learned",
            sure=seed_count(memory),
        ),
        _positions_verdict(results, beyond, learned),
        *(
            _twice(name, at(name, [within]), at(name, [lengths.index(2 * trained)]), trained)
            for name in KINDS
            if name in names
        ),
        *(_universal_verdict(at, beyond, learned) if "universal" in names else ()),
        Verdict(
            f"Within the trained length, relative positions are as accurate when read {results['segment']} tokens at a "
            "time with memory as when read in one segment.",
            mean(memory) > 0.5 and mean(memory) > mean(once) - 0.05,
            f"{percent(memory)} of the answers of {trained} symbols against {percent(once)}",
            sure=seed_count(memory),
        ),
        *(_table(results, task) for task in tasks),
        _published(),
    ]


def _twice(name: str, within: Sequence[float], twice: Sequence[float], trained: int) -> Verdict:
    """Whether a model answers most questions of twice the trained length, with every seed."""
    return Verdict(
        f"{KINDS[name]} answers questions twice as long as any in training.",
        min(within) > 0.5 and min(twice) > 0.5,
        f"{percent(within)} of the answers are right at {trained} symbols, {percent(twice)} at {2 * trained}; "
        f"{seed_count(twice)}",
        size=f"{percent(twice)} right, {percent(within)} at the trained length",
        sure=seed_count(twice),
    )


def _positions_verdict(results: Results, beyond: Sequence[int], learned: Sequence[str]) -> Verdict:
    """Relative against absolute positions, task by task: one easy task must not decide for all."""
    symbols = {
        task: [
            [mean([seed["symbols"][place] for place in beyond]) for seed in models[name]]
            for name in ("relative", "sinusoidal")
        ]
        for task, models in results["right"].items()
    }
    ahead = [
        task
        for task, (far, near) in symbols.items()
        if always_lower(near, far) and mean(far) - mean(near) > AHEAD
    ]
    told = ", ".join(
        f"{task} {percent(far)} against {percent(near)}" for task, (far, near) in symbols.items()
    )
    count = f"{len(ahead)} of {len(symbols)} tasks"
    return Verdict(
        "Relative positions extrapolate farther than absolute sinusoids.",
        {"relative", "sinusoidal"} <= set(learned) and len(ahead) > len(symbols) / 2,
        f"symbols that are right beyond {results['trained']}, each after the right ones before it: {told}. Ahead in "
        f"{count} (with every seed, and by more than {100 * AHEAD:.0f} points; most of the tasks count as shown)",
        size=f"ahead in {count}",
        sure=seed_count(next(iter(symbols.values()))[0]),
    )


def _universal_verdict(
    at: Callable[..., list[float]], beyond: Sequence[int], learned: Sequence[str]
) -> Iterator[Verdict]:
    far = {name: at(name, beyond, "symbols") for name in (*UNIVERSAL, "relative", "LSTM")}
    best = max(UNIVERSAL, key=lambda name: mean(far[name]))
    yield Verdict(
        "A Universal Transformer generalizes to longer questions than a Transformer and an LSTM, as published.",
        best in learned and all(always_lower(far[name], far[best]) for name in ("relative", "LSTM")),
        f"symbols that are right beyond the trained length: {_shares(far)}",
        size=", ".join(f"{name} {percent(far[name])}" for name in (best, "relative", "LSTM")),
        sure=seed_count(far[best]),
    )


def percent(shares: Sequence[float]) -> str:
    return f"{plus_minus([100 * share for share in shares], 0)} %"


def _shares(by_name: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {percent(shares)}" for name, shares in by_name.items())


def _table(results: Results, task: str) -> Table:
    rows = [
        [
            name,
            *(_both(seeds, place) for place in range(len(results["lengths"]))),
            f"{results['parameters'][name]:,}",
        ]
        for name, seeds in results["right"][task].items()
    ]
    return Table(
        ["model", *(f"{length}" for length in results["lengths"]), "parameters"],
        rows,
        f"{task.capitalize()}: accuracy in per cent of {results['tested']} whole answers (and of their symbols), by "
        f"length (trained up to {results['trained']}); mean of seeds, ± half the range for whole answers.",
    )


def _published() -> Table:
    figures = published("algorithms")
    rows = [
        [name, *(f"{whole:.2f} ({symbols:.2f})" for symbols, whole in shares)]
        for name, shares in figures["rows"].items()
    ]
    return Table(
        ["model", *figures["tasks"]],
        rows,
        f"Published: accuracy of whole answers (and of their symbols), trained up to {figures['trained']} symbols and "
        f"tested at {figures['tested']}, with larger models, longer training and random position offsets. "
        f"{source(figures['source'])}.",
    )


def _both(seeds: Sequence[Results], place: int) -> str:
    answers, symbols = ([100 * one[what][place] for one in seeds] for what in SHARES)
    return f"{plus_minus(answers, 0)} ({mean(symbols):.0f})"


def draw(results: Results) -> list[Picture]:
    tasks = list(results["right"])
    figure, axes = canvas(len(SHARES), len(tasks), width=3 * len(tasks) + 2, height=5.4)
    for place, axis in enumerate(axes):
        what, task = SHARES[place // len(tasks)], tasks[place % len(tasks)]
        for name, seeds in results["right"][task].items():
            shares = [mean(column) for column in zip(*(one[what] for one in seeds), strict=True)]
            axis.plot(
                results["lengths"], shares, "--" if "memory" in name else "-", marker="o", ms=3, label=name
            )
        axis.axvline(results["trained"], color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=f"{task}: {what}", xlabel="length", ylim=(-0.05, 1.05), ylabel="accuracy")
    axes[0].legend(fontsize="x-small")
    caption = f"Accuracy by length; the dotted line is the longest trained length ({results['trained']})."
    return [Picture("algorithms", caption, figure)]


EXPERIMENT = Experiment(
    name="algorithms",
    claim="Attention with relative positions generalizes beyond the trained length; absolute positions do not.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
