"""Copying, reversing, parity and addition: learned up to a length, tested up to four times that.

A question, an equals sign, the answer, a full stop, read as one text; only the answer is learned. An answer counts if
all of it is right. Without memory a question and its answer are one segment; with memory they are read a few tokens at
a time, and what lies before is seen only as memory. Letters: B lanes, T tokens.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.config import Reach, RecurrentConfig, XLConfig
from segue.lab.drawing import canvas
from segue.lab.exercise import brief, exercise
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.kept import kept
from segue.lab.spread import lower, mean, said
from segue.nn.footprint import parameters
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.text.tasks import SIZED

VOCAB, WIDTH, LANES, SEGMENT = 128, 64, 64, 8
TRAINED, TIMES = 5, (0.5, 1, 1.5, 2, 3, 4)
LENGTHS = [int(times * TRAINED) for times in TIMES]
FAR = 3 * LENGTHS[-1] + 4
"""Tokens of the longest text: a sum of two numbers, and its answer."""


@dataclass(frozen=True)
class Way:
    """A model, and how it reads."""

    config: XLConfig | RecurrentConfig
    segment: int  # 0: all at once
    memory: int


def _transformer(encoding: str, *, memory: bool) -> Way:
    shape = {"vocab": VOCAB, "width": WIDTH, "layers": 2, "heads": 4, "encoding": encoding}
    if encoding == "learned":
        shape["max_positions"] = FAR
    return Way(XLConfig.model_validate(shape), SEGMENT if memory else 0, FAR if memory else 0)


WAYS: dict[str, Way] = {
    "sinusoidal": _transformer("sinusoidal", memory=False),
    "learned": _transformer("learned", memory=False),
    "relative": _transformer("xl", memory=False),
    "sinusoidal, memory": _transformer("sinusoidal", memory=True),
    "learned, memory": _transformer("learned", memory=True),
    "relative, memory": _transformer("xl", memory=True),
    "LSTM": Way(RecurrentConfig(vocab=VOCAB, width=80, layers=2), 0, 1),
}

SHARES = ("whole", "symbols")
"""Of answers: right from beginning to end, and symbol by symbol."""

QUICK = (("copy",), ("sinusoidal", "relative", "relative, memory", "LSTM"))


def measure(setting: Setting) -> Results:
    tasks, names = QUICK if setting.quick else (tuple(SIZED), tuple(WAYS))
    steps, tested = (300, 50) if setting.quick else (1000, 200)
    found = {
        task: {
            name: [_learned(setting, name, task, steps, tested, seed) for seed in setting.seeds]
            for name in names
        }
        for task in tasks
    }
    return {
        "trained": TRAINED,
        "lengths": LENGTHS,
        "steps": steps,
        "lanes": LANES,
        "tested": tested,
        "segment": SEGMENT,
        "parameters": {name: parameters(WAYS[name].config) for name in names},
        "right": found,
    }


def _learned(setting: Setting, name: str, task: str, steps: int, tested: int, seed: int) -> Results:
    """By length, the shares of answers that one model gets right."""
    way = WAYS[name]

    def shares() -> Results:
        model = _trained(setting, way, task, steps, seed, f"{name} to {task}, seed {seed}")
        both = [right(way, model, task, length, tested) for length in LENGTHS]
        return dict(zip(SHARES, zip(*both, strict=True), strict=True))

    shape = [way.config.model_dump(mode="json"), way.segment, way.memory, LANES, TRAINED, LENGTHS]
    what = {
        "task": task,
        "steps": steps,
        "tested": tested,
        "seed": seed,
        "way": shape,
    }
    return dict(kept(setting, __name__, what, shares))


def _trained(setting: Setting, way: Way, task: str, steps: int, seed: int, told: str) -> LanguageModel:
    torch.manual_seed(seed)
    model, draw = build_language_model(way.config), random.Random(f"{task} {seed}")  # noqa: S311

    def loss(_step: int) -> Tensor:
        texts = [question(draw, task, draw.randint(1, TRAINED)) for _ in range(LANES)]
        tokens, targets, answers, lengths = together(texts)
        hidden = read(way, model, tokens, lengths)
        return model.nats(hidden[answers], targets[answers]).mean()

    exercise(model, brief(steps, 1e-2), loss, told=told, report=setting.report)
    return model.eval()


def question(draw: random.Random, task: str, length: int) -> tuple[bytes, bytes]:
    asked, answer = SIZED[task](draw, length)
    return asked + b"=", answer + b"."


def together(texts: Sequence[tuple[bytes, bytes]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens and targets (B, T), which targets are answers (B, T), and how many tokens each lane has (B,)."""
    lengths = torch.tensor([len(asked) + len(answer) - 1 for asked, answer in texts])
    tokens = torch.zeros(len(texts), int(lengths.max()) + 1, dtype=torch.int64)
    answers = torch.zeros(len(texts), int(lengths.max()), dtype=torch.bool)
    for lane, (asked, answer) in enumerate(texts):
        tokens[lane, : len(asked + answer)] = torch.tensor(list(asked + answer))
        answers[lane, len(asked) - 1 : len(asked + answer) - 1] = True
    return tokens[:, :-1], tokens[:, 1:], answers, lengths


def read(way: Way, model: LanguageModel, tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, C) Hidden states of texts that begin anew, in segments if the way says so."""
    memory = model.start(lanes=len(tokens), reach=Reach(memory=way.memory))
    hidden = []
    for begin, piece in _pieces(tokens, way.segment or tokens.size(1)):
        here = (lengths - begin).clamp(0, piece.size(1))
        states, memory = model(piece, memory, lengths=here)
        hidden.append(states)
    return torch.cat(hidden, dim=1)


def _pieces(tokens: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    return ((begin, tokens[:, begin : begin + size]) for begin in range(0, tokens.size(1), size))


@torch.no_grad()
def right(way: Way, model: LanguageModel, task: str, length: int, count: int) -> tuple[float, float]:
    """Of questions of that length, the share of whole answers that are the likeliest, and of their symbols."""
    draw = random.Random(f"test {task} {length}")  # noqa: S311 (the same questions for all)
    tokens, targets, answers, lengths = together([question(draw, task, length) for _ in range(count)])
    likeliest = model.logprobs(read(way, model, tokens, lengths)).argmax(dim=-1)
    same = likeliest == targets
    return float((same | ~answers).all(dim=1).double().mean()), float(same[answers].double().mean())


def tell(results: Results) -> list[Block]:
    found, lengths, trained = results["right"], results["lengths"], results["trained"]
    within, last = lengths.index(trained), len(lengths) - 1
    tasks, beyond = list(found), range(within + 1, len(lengths))

    def at(name: str, places: Sequence[int], what: str = "whole") -> list[float]:
        """Of each seed, the mean share over all tasks."""
        seeds = zip(*(found[task][name] for task in tasks), strict=True)
        return [mean([one[what][place] for one in group for place in places]) for group in seeds]

    names = list(found[tasks[0]])
    learned = [name for name in names if mean(at(name, [within])) > 0.5]
    far, near = (at(name, beyond, "symbols") for name in ("relative", "sinusoidal"))
    memory, once = (at(name, [within]) for name in ("relative, memory", "relative"))
    return [
        "An algorithm that is understood works at any length. Each model learns a task on questions of up to "
        f"{trained} symbols, {results['steps']} steps of {results['lanes']} questions, and is then asked longer ones. "
        "Absolute positions beyond the trained ones were never seen; distances beyond them neither. Parity is told "
        "after every bit, and sums are written column by column, so that each symbol of an answer needs little work.",
        Verdict(
            "Models that answer questions of the trained length also answer those four times as long.",
            bool(learned) and all(mean(at(name, [last])) > 0.5 for name in learned),
            f"at {trained} symbols {_shares({name: at(name, [within]) for name in names})} of the answers are right; "
            f"at {lengths[last]}, {_shares({name: at(name, [last]) for name in names})}",
        ),
        Verdict(
            "Relative positions carry farther than sinusoids.",
            {"relative", "sinusoidal"} <= set(learned) and lower(near, far),
            f"beyond {trained} symbols {percent(far)} of the symbols are right with relative positions, "
            f"{percent(near)} with sinusoids; {_shares({name: at(name, beyond, 'symbols') for name in names})}",
        ),
        Verdict(
            f"Read {results['segment']} tokens at a time with memory, relative positions do as well within the trained "
            "length as read at once.",
            mean(memory) > 0.5 and mean(memory) > mean(once) - 0.05,
            f"{percent(memory)} of the answers of {trained} symbols against {percent(once)}",
        ),
        *(_table(results, task) for task in tasks),
    ]


def percent(shares: Sequence[float]) -> str:
    return f"{said([100 * share for share in shares], 0)} %"


def _shares(found: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {percent(shares)}" for name, shares in found.items())


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
        f"{task.capitalize()}: per cent of {results['tested']} whole answers (and of their symbols) that are right, by "
        f"length (trained up to {results['trained']}); mean of seeds, ± half the range of whole answers.",
    )


def _both(seeds: Sequence[Results], place: int) -> str:
    whole, symbols = ([100 * one[what][place] for one in seeds] for what in SHARES)
    return f"{said(whole, 0)} ({mean(symbols):.0f})"


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
        axis.set(title=f"{task}: {what}", xlabel="length", ylim=(-0.05, 1.05), ylabel="share that is right")
    axes[0].legend(fontsize="x-small")
    caption = (
        f"Right answers by length; the dotted line is the longest that was trained ({results['trained']})."
    )
    return [Picture("algorithms", caption, figure)]


EXPERIMENT = Experiment(
    name="algorithms",
    claim="Attention with relative positions can go on beyond the length it was trained on; absolute positions cannot.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
