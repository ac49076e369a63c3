"""How far back gradients reach: the norm of d hidden_t / d input_{t-k} as k grows.

Measured through the models' own front door: if every token of the text has an id of its own, the gradient of a row of
the embedding is the gradient of one place. Letters: B lanes, T tokens, C width, k distance.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from segue.config import Reach, RecurrentConfig, XLConfig
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.kinds import trained_kind, tuned
from segue.lab.spread import mean, said
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.nn.recurrent import RecurrentModel

LANES, LENGTH, WIDTH, DIRECTIONS = 8, 128, 64, 8
SCALES = (0.5, 0.9, 1.0, 1.5, 2.0)
"""Spectral radius of a plain RNN's recurrent matrix."""

FORGET = 3.0
"""A bias of an LSTM's forget gate under which it hardly forgets: sigmoid(3) = 0.95."""

TRAINED = ("RNN", "GRU", "LSTM", "Transformer-XL")

MANY = 1000
"""Times as much, or as little, at the farthest token as at the next: exploded, or vanished."""

LEAST = 1e-300
"""Stands for what float64 cannot tell from nothing, where a logarithm is taken."""


def measure(setting: Setting) -> Results:
    fresh = {
        name: [norms(build(seed), LANES, LENGTH, seed) for seed in setting.seeds]
        for name, build in _fresh().items()
    }
    setting.report("fresh models", 1, 1)
    stream, text = setting.stream("test"), LANES * LENGTH
    tokens = torch.from_numpy(stream.ids[:text].astype("int64")).view(LANES, LENGTH)
    learned = {}
    for name in TRAINED:
        kind = tuned(setting, name)
        bundles = [trained_kind(setting, kind, seed) for seed in setting.seeds]
        learned[name] = [norms(by_place(bundle.model, tokens), LANES, LENGTH, 0) for bundle in bundles]
    return {
        "length": LENGTH,
        "width": WIDTH,
        "fresh": {name: _told(found) for name, found in fresh.items()},
        "trained": {name: _told(found) for name, found in learned.items()},
    }


def _fresh() -> dict[str, Callable[[int], LanguageModel]]:
    """Models as they begin, from a seed."""
    plain = {f"RNN, radius {scale:g}": lambda seed, scale=scale: _rnn(seed, scale) for scale in SCALES}
    return {
        **plain,
        "GRU": lambda seed: _recurrent(seed, "gru"),
        "LSTM": lambda seed: _recurrent(seed, "lstm"),
        "LSTM, gate kept open": _remembering,
        "Transformer": _transformer,
    }


def _recurrent(seed: int, cell: str) -> RecurrentModel:
    torch.manual_seed(seed)
    config = RecurrentConfig.model_validate(
        {"vocab": LANES * LENGTH, "width": WIDTH, "layers": 1, "tied": False, "cell": cell}
    )
    return RecurrentModel(config).double()


@torch.no_grad()
def _rnn(seed: int, scale: float) -> RecurrentModel:
    """A Gaussian recurrent matrix of that spectral radius, and weak inputs, so that tanh does not saturate."""
    model = _recurrent(seed, "rnn")
    cells = model.cells
    for name, spread in (("weight_hh_l0", scale), ("weight_ih_l0", 0.1)):
        nn.init.normal_(getattr(cells, name), 0.0, spread / math.sqrt(WIDTH))
    for name in ("bias_hh_l0", "bias_ih_l0"):
        nn.init.zeros_(getattr(cells, name))
    return model


@torch.no_grad()
def _remembering(seed: int) -> RecurrentModel:
    model = _recurrent(seed, "lstm")
    bias: Tensor = getattr(model.cells, "bias_hh_l0")  # noqa: B009 (torch knows it by name only)
    bias[WIDTH : 2 * WIDTH] = FORGET
    return model


def _transformer(seed: int) -> LanguageModel:
    torch.manual_seed(seed)
    config = XLConfig(vocab=LANES * LENGTH, width=WIDTH, layers=3, heads=4, tied=False)
    return build_language_model(config).double()


@torch.no_grad()
def by_place(model: LanguageModel, tokens: Tensor) -> LanguageModel:
    """The same model for a vocabulary in which every place of the text (B, T) has an id of its own, in order."""
    table = model.vocabulary.tables[0][tokens.flatten()]
    apart = build_language_model(model.config.model_copy(update={"vocab": tokens.numel(), "tied": False}))
    body = {name: weight for name, weight in model.state_dict().items() if not name.startswith("vocabulary.")}
    apart.load_state_dict(body, strict=False)
    apart.vocabulary.tables[0].copy_(table)
    return apart.double().eval()


def norms(model: LanguageModel, lanes: int, length: int, seed: int) -> list[float]:
    """By distance from 0 on, the Frobenius norm of d hidden / d input over sqrt(C), from gradients along directions.

    The mean square of a gradient along a random unit vector is that of the Jacobian's norm over C.
    """
    ids = torch.arange(lanes * length).view(lanes, length)
    hidden, _ = model(ids, model.start(lanes=lanes, reach=Reach(memory=1)))
    width, draw = hidden.size(-1), torch.Generator().manual_seed(seed)
    total = torch.zeros(length, dtype=hidden.dtype)
    for _ in range(DIRECTIONS):
        way = torch.randn(lanes, width, generator=draw, dtype=hidden.dtype)
        along = (hidden[:, -1] * way / way.norm(dim=1, keepdim=True)).sum()
        (gradient,) = torch.autograd.grad(along, model.vocabulary.tables[0], retain_graph=True)
        # the embedding multiplies its rows by sqrt(C)
        total += (gradient.view(lanes, length, width) / math.sqrt(width)).square().sum(dim=-1).mean(dim=0)
    return [float(value) for value in (total / DIRECTIONS).sqrt().flip(0)]


def _told(found: list[list[float]]) -> Results:
    return {
        "norms": [[float(f"{value:.4g}") for value in one] for one in found],
        "factors": [factor(one) for one in found],
        "farthest": [one[-1] / max(one[1], LEAST) for one in found],
    }


def factor(by_distance: list[float]) -> float:
    """By how much the norm is multiplied from one token to the next, on average, beyond the nearest few."""
    near, far = 5, len(by_distance) - 1
    rise = math.log(max(by_distance[far], LEAST)) - math.log(max(by_distance[near], LEAST))
    return math.exp(rise / (far - near))


def tell(results: Results) -> list[Block]:
    fresh, learned, length = results["fresh"], results["trained"], results["length"]

    def of(name: str) -> list[float]:
        return list(fresh[name]["factors"])

    def left(name: str) -> list[float]:
        return list(fresh[name]["farthest"])

    def after(name: str) -> list[float]:
        return list(learned[name]["factors"])

    small, large = f"RNN, radius {SCALES[0]:g}", f"RNN, radius {SCALES[-1]:g}"
    return [
        "A network learns that something mattered k tokens ago only if the gradient still tells it so. Through a "
        "recurrent network the gradient is multiplied at every step by about the same matrix: it vanishes or explodes, "
        "exponentially. Gates multiply it by numbers near one where they are open. Attention looks at any distance "
        "directly, so nothing is multiplied over and over. The norm of d hidden_t / d input_{t-k} is shown as k grows, "
        f"for models as they begin (width {results['width']}), and for trained ones on real text. The first three "
        "verdicts are about untrained weights; the last asks whether training leaves the order that the architectures "
        "begin with.",
        Verdict(
            "In a plain RNN gradients vanish if its recurrent matrix is small, and explode if it is large.",
            max(left(small)) < 1 / MANY and min(left(large)) > MANY,
            f"each step multiplies them by {said(of(small), 2)} at radius {SCALES[0]:g} and by {said(of(large), 2)} at "
            f"radius {SCALES[-1]:g}; over {length - 1} tokens at most {max(left(small)):.0e} and at least "
            f"{min(left(large)):.0e} of the norm at distance 1 is left ({MANY:,} times less or more counts as shown)",
        ),
        Verdict(
            "An LSTM whose forget gate is open keeps gradients alive.",
            min(of("LSTM, gate kept open")) > max(of("LSTM")) and min(of("LSTM, gate kept open")) > 0.98,
            f"each step multiplies them by {said(of('LSTM, gate kept open'), 3)}, and by {said(of('LSTM'), 3)} as "
            "it usually begins",
        ),
        Verdict(
            "As it begins, attention reaches every distance alike: its gradients do not fall with distance.",
            min(of("Transformer")) > 0.99,
            f"with untrained weights, each step multiplies them by {said(of('Transformer'), 4)}; over {length - 1} "
            f"tokens {said(fresh['Transformer']['farthest'], 2)} of the norm at distance 1 is left",
        ),
        Verdict(
            "After training, too, gradients reach farther in a Transformer-XL than in an LSTM, and in an LSTM than in "
            "a plain RNN.",
            min(after("Transformer-XL")) > max(after("LSTM")) and min(after("LSTM")) > max(after("RNN")),
            ", ".join(f"{name} {said(after(name), 3)}" for name in TRAINED) + " a step",
        ),
        _table(results),
    ]


def _table(results: Results) -> Table:
    return Table(
        ["model", "factor a step", f"norm at {results['length'] - 1} / norm at 1"],
        [
            [f"{name} ({state})", said(found["factors"], 3), f"{mean(found['farthest']):.1e}"]
            for state in ("fresh", "trained")
            for name, found in results[state].items()
        ],
        "Mean ± half the range of seeds.",
    )


def draw(results: Results) -> list[Picture]:
    figure, (left, right) = canvas(1, 2, width=12, height=4)
    for axis, state in ((left, "fresh"), (right, "trained")):
        for place, (name, found) in enumerate(results[state].items()):
            by_distance = [max(LEAST, mean(values)) for values in zip(*found["norms"], strict=True)]
            axis.semilogy(by_distance, "-" if place < 7 else "--", label=name)
        axis.set(title=state, xlabel="distance k", ylim=(1e-12, 1e6))
        axis.legend(fontsize="small", bbox_to_anchor=(1, 1), loc="upper left")
    left.set(ylabel="norm of d hidden / d input")
    right.set(ylim=(1e-8, 1e2))
    caption = "How much the state at a token depends on an input k tokens before it; each line is the mean of seeds."
    return [Picture("gradients", caption, figure)]


EXPERIMENT = Experiment(
    name="gradients",
    claim="Gradients through a recurrent network vanish or explode with distance; gates slow that down, and attention "
    "does away with it.",
    measure=measure,
    tell=tell,
    draw=draw,
)
