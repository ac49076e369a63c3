"""Copying, reversing, parity and addition: learned up to a length, tested up to four times that.

A question, an equals sign, the answer, a full stop, read as one text; only the answer is learned. An answer counts if
all of it is right. Without memory a question and its answer are one segment; with memory they are read a few tokens at
a time, and what lies before is seen only as memory. Letters: B lanes, T tokens.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.config import Reach, RecurrentConfig, XLConfig
from segue.lab.drawing import canvas
from segue.lab.exercise import brief, exercise
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.spread import mean, said
from segue.nn.footprint import parameters
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.text.tasks import SIZED

VOCAB, WIDTH, LANES, SEGMENT = 128, 64, 32, 8
TRAINED, TIMES = 10, (0.5, 1, 1.5, 2, 3, 4)
FAR = 2 * int(TRAINED * TIMES[-1]) + int(TRAINED * TIMES[-1]) + 4
"""Tokens of the longest text: a sum of two numbers, and its answer."""


@dataclass(frozen=True)
class Way:
    """A model, and how it reads."""

    config: XLConfig | RecurrentConfig
    segment: int  # 0: all at once
    memory: int


def _transformer(encoding: str, *, memory: bool) -> Way:
    table = FAR if encoding == "learned" else 0
    shape = {"vocab": VOCAB, "width": WIDTH, "layers": 2, "heads": 4, "encoding": encoding, "table": table}
    return Way(XLConfig.model_validate(shape), SEGMENT if memory else 0, FAR if memory else 0)


WAYS: dict[str, Way] = {
    "sinusoidal": _transformer("sinusoidal", memory=False),
    "learned": _transformer("learned", memory=False),
    "relative": _transformer("xl", memory=False),
    "sinusoidal, memory": _transformer("sinusoidal", memory=True),
    "learned, memory": _transformer("learned", memory=True),
    "relative, memory": _transformer("xl", memory=True),
    "LSTM": Way(RecurrentConfig(vocab=VOCAB, width=72, layers=2), 0, 1),
}

QUICK = (("copy", "parity"), ("sinusoidal", "relative", "relative, memory", "LSTM"))


def measure(setting: Setting) -> Results:
    tasks, names = QUICK if setting.quick else (tuple(SIZED), tuple(WAYS))
    steps, tested = (150, 50) if setting.quick else (800, 200)
    lengths = [max(1, int(times * TRAINED)) for times in TIMES]
    found: Results = {}
    for task in tasks:
        found[task] = {}
        for name in names:
            told = f"{name} to {task}"
            models = [_trained(setting, WAYS[name], task, steps, seed, told) for seed in setting.seeds]
            found[task][name] = [
                [right(WAYS[name], model, task, length, tested) for length in lengths] for model in models
            ]
    return {
        "trained": TRAINED,
        "lengths": lengths,
        "steps": steps,
        "lanes": LANES,
        "tested": tested,
        "segment": SEGMENT,
        "parameters": {name: parameters(WAYS[name].config) for name in names},
        "right": found,
    }


def _trained(setting: Setting, way: Way, task: str, steps: int, seed: int, told: str) -> LanguageModel:
    torch.manual_seed(seed)
    model, draw = build_language_model(way.config), random.Random(f"{task} {seed}")  # noqa: S311

    def loss(_step: int) -> Tensor:
        texts = [question(draw, task, draw.randint(1, TRAINED)) for _ in range(LANES)]
        tokens, targets, answers, lengths = together(texts)
        hidden = read(way, model, tokens, lengths)
        return model.nats(hidden[answers], targets[answers]).mean()

    exercise(model, brief(steps, 1e-2), loss, told=f"{told}, seed {seed}", report=setting.report)
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
def right(way: Way, model: LanguageModel, task: str, length: int, count: int) -> float:
    """The share of questions of that length whose whole answer is the likeliest, symbol by symbol."""
    draw = random.Random(f"test {task} {length}")  # noqa: S311 (the same questions for all)
    tokens, targets, answers, lengths = together([question(draw, task, length) for _ in range(count)])
    likeliest = model.logprobs(read(way, model, tokens, lengths)).argmax(dim=-1)
    return float(((likeliest == targets) | ~answers).all(dim=1).double().mean())


def tell(results: Results) -> list[Block]:
    found, lengths, trained = results["right"], results["lengths"], results["trained"]
    within, beyond = (
        lengths.index(trained),
        [place for place, length in enumerate(lengths) if length > trained],
    )
    tasks = list(found)

    def at(name: str, places: Sequence[int]) -> float:
        """Of all tasks and seeds, the mean share that is right."""
        return mean([one[place] for task in tasks for one in found[task][name] for place in places])

    names = list(found[tasks[0]])
    best = max(names, key=lambda name: at(name, beyond))
    whole = all(mean([one[-1] for one in found[task][name]]) > 0.9 for task in tasks for name in names)
    return [
        "An algorithm that is understood works at any length. Each model learns a task on questions of up to "
        f"{trained} symbols, {results['steps']} steps of {results['lanes']} questions, and is then asked longer ones. "
        "Absolute positions beyond the trained ones were never seen; distances beyond them neither. Parity is told "
        "after every bit, and sums are written column by column, so that each symbol of an answer needs little work.",
        Verdict(
            "Models that answer questions of the trained length also answer those four times as long.",
            whole,
            f"at {trained} symbols {_shares(names, at, [within])} are right; at {lengths[-1]} "
            f"{_shares(names, at, [len(lengths) - 1])}",
        ),
        Verdict(
            "Relative positions carry farther than sinusoids.",
            at("relative", beyond) > at("sinusoidal", beyond) + 0.01,
            f"beyond {trained} symbols {at('relative', beyond):.0%} of the answers are right with relative positions, "
            f"{at('sinusoidal', beyond):.0%} with sinusoids; the farthest comes {best} ({at(best, beyond):.0%})",
        ),
        Verdict(
            f"Read {results['segment']} tokens at a time with memory, relative positions do as well within the trained "
            "length as read at once.",
            at("relative, memory", [within]) > at("relative", [within]) - 0.05,
            f"{at('relative, memory', [within]):.0%} against {at('relative', [within]):.0%} are right",
        ),
        *(_table(results, task) for task in tasks),
    ]


def _shares(names: Sequence[str], at: Callable[[str, Sequence[int]], float], places: Sequence[int]) -> str:
    return ", ".join(f"{name} {at(name, places):.0%}" for name in names)


def _table(results: Results, task: str) -> Table:
    rows = []
    for name, seeds in results["right"][task].items():
        shares = [said([100 * one[place] for one in seeds], 0) for place in range(len(results["lengths"]))]
        rows.append([name, *shares, f"{results['parameters'][name]:,}"])
    return Table(
        ["model", *(f"{length}" for length in results["lengths"]), "parameters"],
        rows,
        f"{task.capitalize()}: per cent of {results['tested']} whole answers that are right, by length (trained up to "
        f"{results['trained']}); mean ± half the range of seeds.",
    )


def draw(results: Results) -> list[Picture]:
    tasks = list(results["right"])
    figure, axes = canvas(1, len(tasks), width=3.4 * len(tasks) + 1.5, height=3.4)
    for axis, task in zip(axes, tasks, strict=True):
        for name, seeds in results["right"][task].items():
            shares = [mean(column) for column in zip(*seeds, strict=True)]
            axis.plot(
                results["lengths"], shares, "--" if "memory" in name else "-", marker="o", ms=3, label=name
            )
        axis.axvline(results["trained"], color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=task, xlabel="length", ylim=(-0.05, 1.05))
    axes[0].set(ylabel="whole answers right")
    axes[-1].legend(fontsize="x-small", loc="upper right")
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
)
