"""Vanishing gradients: the norm of d hidden_t / d input_{t-k} by distance k.

Measured through the embedding: if every position of the text has its own token id, the gradient of a row of the
embedding is the gradient of one input. Some text is read before, without gradients: the first tokens after an empty
state are unlike others. Letters: B lanes, T tokens, C width, k distance.
"""

import math
from collections.abc import Callable
from statistics import linear_regression

import torch
from torch import Tensor, nn

from segue.config import Reach, RecurrentConfig, XLConfig
from segue.lab.architectures import trained_architecture, tuned_architecture
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import mean, plus_minus
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.nn.recurrent import RecurrentModel

LANES, LENGTH, WIDTH, DIRECTIONS = 8, 128, 64, 8
SCALES = (0.5, 0.9, 1.0, 1.5, 2.0)
"""Spectral radii of a plain RNN's recurrent matrix."""

FORGET = 3.0
"""A bias that keeps an LSTM's forget gate open: sigmoid(3) = 0.95."""

TRAINED = ("RNN", "GRU", "LSTM", "Transformer-XL")

VANISHED_RATIO = 1000
"""A gradient norm has vanished or exploded if it is so many times smaller or larger than at distance 1."""

SMALLEST_NORM = 1e-300
"""A floor for norms before a logarithm is taken: float64 underflows to 0."""


def measure(setting: Setting) -> Results:
    fresh = {
        name: [norms(build(seed), LANES, LENGTH, seed) for seed in setting.seeds]
        for name, build in _fresh().items()
    }
    setting.report("untrained models", 1, 1)
    stream, text = setting.stream("test"), 2 * LANES * LENGTH
    tokens = torch.from_numpy(stream.ids[:text].astype("int64")).view(LANES, -1)
    learned = {}
    for name in TRAINED:
        architecture = tuned_architecture(setting, name)
        bundles = [trained_architecture(setting, architecture, seed) for seed in setting.seeds]
        learned[name] = [norms(by_position(bundle.model, tokens), LANES, LENGTH, 0) for bundle in bundles]
    return {
        "length": LENGTH,
        "width": WIDTH,
        "fresh": {name: _summary(seeds) for name, seeds in fresh.items()},
        "trained": {name: _summary(seeds) for name, seeds in learned.items()},
    }


def _fresh() -> dict[str, Callable[[int], LanguageModel]]:
    """Untrained models, each built from a seed."""
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
        {"vocab": 2 * LANES * LENGTH, "width": WIDTH, "layers": 1, "tied": False, "cell": cell}
    )
    return RecurrentModel(config).double()


@torch.no_grad()
def _rnn(seed: int, scale: float) -> RecurrentModel:
    """A Gaussian recurrent matrix of that spectral radius, and small input weights, so that tanh does not saturate."""
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
    config = XLConfig(vocab=2 * LANES * LENGTH, width=WIDTH, layers=3, heads=4, tied=False)
    return build_language_model(config).double()


@torch.no_grad()
def by_position(model: LanguageModel, tokens: Tensor) -> LanguageModel:
    """The same model with a vocabulary in which every position of the text (B, T) has its own id, in order."""
    table = model.vocabulary.tables[0][tokens.flatten()]
    apart = build_language_model(model.config.model_copy(update={"vocab": tokens.numel(), "tied": False}))
    body = {name: weight for name, weight in model.state_dict().items() if not name.startswith("vocabulary.")}
    apart.load_state_dict(body, strict=False)
    apart.vocabulary.tables[0].copy_(table)
    return apart.double().eval()


def norms(model: LanguageModel, lanes: int, length: int, seed: int) -> list[float]:
    """The Frobenius norm of d hidden / d input over sqrt(C) by distance from 0, estimated with random directions.

    As many tokens are read before. The expected square of the gradient along a random unit vector is the squared
    Frobenius norm over C.
    """
    before, ids = torch.arange(2 * lanes * length).view(lanes, -1).split(length, dim=1)
    reach = Reach(memory=1 if isinstance(model, RecurrentModel) else length // 2)
    with torch.no_grad():
        _, memory = model(before, model.start(lanes=lanes, reach=reach))
    hidden, _ = model(ids, memory)
    width, draw = hidden.size(-1), torch.Generator().manual_seed(seed)
    total = torch.zeros(length, dtype=hidden.dtype)
    for _ in range(DIRECTIONS):
        direction = torch.randn(lanes, width, generator=draw, dtype=hidden.dtype)
        along = (hidden[:, -1] * direction / direction.norm(dim=1, keepdim=True)).sum()
        (gradient,) = torch.autograd.grad(along, model.vocabulary.tables[0], retain_graph=True)
        inputs = gradient.view(lanes, 2 * length, width)[:, length:]
        # the embedding multiplies its rows by sqrt(C)
        total += (inputs / math.sqrt(width)).square().sum(dim=-1).mean(dim=0)
    return [float(value) for value in (total / DIRECTIONS).sqrt().flip(0)]


def _summary(seeds: list[list[float]]) -> Results:
    return {
        "norms": [[float(f"{value:.4g}") for value in one] for one in seeds],
        "factors": [factor(one) for one in seeds],
        "farthest": [one[-1] / max(one[1], SMALLEST_NORM) for one in seeds],
    }


def factor(by_distance: list[float]) -> float:
    """The factor of the norm from one distance to the next, by least squares, without the first few distances."""
    near = 5
    logs = [math.log(max(norm, SMALLEST_NORM)) for norm in by_distance[near:]]
    return math.exp(linear_regression(range(len(logs)), logs).slope)


def tell(results: Results) -> list[Block]:
    fresh, trained, length = results["fresh"], results["trained"], results["length"]
    factors = {name: list(one["factors"]) for name, one in fresh.items()}
    ratios = {name: list(one["farthest"]) for name, one in fresh.items()}
    after = {name: list(one["factors"]) for name, one in trained.items()}
    small, large = f"RNN, radius {SCALES[0]:g}", f"RNN, radius {SCALES[-1]:g}"
    open_gate, usual = factors["LSTM, gate kept open"], factors["LSTM"]
    return [
        "A network can learn from a token k steps back only if the gradient reaches it. Through a recurrent network "
        "the gradient is multiplied at every step by about the same matrix: it vanishes or explodes exponentially. "
        "Open gates multiply it by numbers near one. Attention connects any two positions directly, without repeated "
        "multiplication. The norm of d hidden_t / d input_{t-k} is shown by k, "
        f"for untrained models (width {results['width']}) and for trained ones on real text, after as much text again: "
        "the first tokens after an empty state are unlike others. The first three verdicts are about untrained "
        "weights; the last asks whether the architectures keep this order after training.",
        Verdict(
            "In a plain RNN gradients vanish if its recurrent matrix is small, and explode if it is large.",
            max(ratios[small]) < 1 / VANISHED_RATIO and min(ratios[large]) > VANISHED_RATIO,
            f"each step multiplies them by {plus_minus(factors[small], 2)} at spectral radius {SCALES[0]:g} and by "
            f"{plus_minus(factors[large], 2)} at {SCALES[-1]:g}; the norm at distance {length - 1} is at most "
            f"{max(ratios[small]):.0e} and at least {min(ratios[large]):.0e} of that at distance 1 "
            f"({VANISHED_RATIO:,} times less or more counts as shown)",
        ),
        Verdict(
            "In an LSTM with an open forget gate gradients do not vanish.",
            min(open_gate) > max(usual) and min(open_gate) > 0.98,
            f"each step multiplies them by {plus_minus(open_gate, 3)}, and by {plus_minus(usual, 3)} with the usual "
            "initialization",
        ),
        Verdict(
            "In an untrained Transformer gradients do not fall with distance.",
            min(factors["Transformer"]) > 0.99,
            f"each step multiplies them by {plus_minus(factors['Transformer'], 4)}; the norm at distance {length - 1} "
            f"is {plus_minus(ratios['Transformer'], 2)} of that at distance 1",
        ),
        Verdict(
            "After training, too, gradients reach farther in a Transformer-XL than in an LSTM, and in an LSTM than in "
            "a plain RNN.",
            min(after["Transformer-XL"]) > max(after["LSTM"]) and min(after["LSTM"]) > max(after["RNN"]),
            ", ".join(f"{name} {plus_minus(after[name], 3)}" for name in TRAINED) + " per step",
        ),
        _table(results),
    ]


def _table(results: Results) -> Table:
    return Table(
        ["model", "factor per step", f"norm at {results['length'] - 1} / norm at 1"],
        [
            [f"{name} ({state})", plus_minus(model["factors"], 3), f"{mean(model['farthest']):.1e}"]
            for state in ("fresh", "trained")
            for name, model in results[state].items()
        ],
        "Mean ± half the range of seeds.",
    )


def draw(results: Results) -> list[Picture]:
    figure, (left, right) = canvas(1, 2, width=12, height=4)
    for axis, state in ((left, "fresh"), (right, "trained")):
        for place, (name, model) in enumerate(results[state].items()):
            by_distance = [max(SMALLEST_NORM, mean(values)) for values in zip(*model["norms"], strict=True)]
            axis.semilogy(by_distance, "-" if place < 7 else "--", label=name)
        axis.set(title=state, xlabel="distance k", ylim=(1e-12, 1e6))
        axis.legend(fontsize="small", bbox_to_anchor=(1, 1), loc="upper left")
    left.set(ylabel="norm of d hidden / d input")
    right.set(ylim=(1e-8, 1e2))
    caption = (
        "The gradient norm of a hidden state with respect to the input k tokens before it; mean of seeds."
    )
    return [Picture("gradients", caption, figure)]


EXPERIMENT = Experiment(
    name="gradients",
    claim="Gradients through a recurrent network vanish or explode with distance; gates slow that down, and attention "
    "avoids it.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
