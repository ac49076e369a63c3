"""Context fragmentation: the loss by position in the segment, for four ways to evaluate the same text.

Letters: T tokens in the segment.
"""

import math
from typing import Any

import torch
from torch import Tensor

from segue.checkpoint import Bundle
from segue.infer.evaluate import sliding_surprises, surprises
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import fewer_bits, mean, plus_minus, seed_count, signed_plus_minus
from segue.lab.trained import budget, recipe_for, scored_tokens, trained
from segue.lab.tuning import tuned
from segue.nn.engine import Engine

MODES = {
    "segments": "vanilla, isolated segments",
    "sliding": "vanilla, sliding window",
    "relative": "relative positions, isolated segments",
    "xl": "Transformer-XL, with memory",
}

COST_RATIO = 10
"""A sliding window must send more than this many times as many tokens through the layers to count as shown."""


def measure(setting: Setting) -> Results:
    segment = budget(setting).segment
    total = scored_tokens(setting) // segment * segment
    by_mode: dict[str, list[Results]] = {mode: [] for mode in MODES}
    recipes = {
        "vanilla": recipe_for(setting, seed=setting.seed, encoding="sinusoidal", memory=0),
        "relative": recipe_for(setting, seed=setting.seed, memory=0),
        "xl": recipe_for(setting, seed=setting.seed),
    }
    best = {name: tuned(setting, recipe, name) for name, recipe in recipes.items()}
    for seed in setting.seeds:
        models = {name: trained(setting, best[name].seeded(seed), f"{name}, seed {seed}") for name in recipes}
        for mode in MODES:
            by_mode[mode].append(_read(setting, models.get(mode, models["vanilla"]), mode, total))
    return {
        "segment": segment,
        "scored": total,
        "trained": budget(setting).tokens,
        "models": {n: b.summary() for n, b in best.items()},
        "ways": by_mode,
    }


def _read(setting: Setting, bundle: Bundle, mode: str, total: int) -> Results:
    """Bits by position in the segment, and the tokens through the layers for each predicted token."""
    stream, nats, reading = setting.stream("test"), list[Tensor](), bundle.reading
    engine = CountingEngine(bundle.model.frozen())
    pieces = (
        sliding_surprises(engine, stream, reading, total, batch=128)
        if mode == "sliding"
        else surprises(engine, stream, reading, total)
    )
    done = 0
    for piece in pieces:
        nats.append(piece)
        done += len(piece)
        setting.report(f"reading {MODES[mode]}", done, total)
    by_position = torch.cat(nats).view(-1, reading.segment).mean(dim=0) / math.log(2)
    return {"bits": [round(value, 4) for value in by_position.tolist()], "read": sum(engine.counts) / done}


class CountingEngine(Engine[Any]):
    """Counts the tokens that each call sends through the layers, also tokens that are read again."""

    def __init__(self, engine: Engine[Any]) -> None:
        super().__init__(engine.model)
        self._engine, self.counts = engine, list[int]()

    def start(self, *given: Any, **settings: Any) -> Any:
        return self._engine.start(*given, **settings)

    def __call__(self, tokens: Tensor, memory: Any, **marks: Any) -> tuple[Tensor, Any]:
        self.counts.append(tokens.numel())
        return self._engine(tokens, memory, **marks)


def boundary_cost(bits: list[float]) -> float:
    """Mean bits of the first quarter of a segment minus those of its second half."""
    size = len(bits)
    return mean(bits[: size // 4]) - mean(bits[size // 2 :])


def boundary_costs(results: Results, mode: str) -> list[float]:
    """The same, for each seed."""
    return [boundary_cost(one["bits"]) for one in results["ways"][mode]]


def _second_halves(results: Results) -> list[float]:
    """Bits that a sliding window costs in the second half of a segment, minus those of isolated segments."""
    ways, half = results["ways"], results["segment"] // 2
    return [
        mean(window["bits"][half:]) - mean(isolated["bits"][half:])
        for window, isolated in zip(ways["sliding"], ways["segments"], strict=True)
    ]


def tell(results: Results) -> list[Block]:
    cost = {mode: boundary_costs(results, mode) for mode in MODES}
    average = {mode: [mean(one["bits"]) for one in seeds] for mode, seeds in results["ways"].items()}
    read = {mode: seeds[0]["read"] for mode, seeds in results["ways"].items()}
    count = seed_count(cost["xl"])
    return [
        "A vanilla Transformer reads text in isolated segments. The first tokens of each segment have no "
        "context: the context is fragmented. A sliding window, moved by one token at a time and read again for "
        "every token, gives every token a full context, at a high cost. Transformer-XL carries its memory from "
        "segment to segment. It has other positions too; how much of its lead is theirs is told by the same model "
        f"without a memory. All read the same {results['scored']:,} tokens, in segments of "
        f"{results['segment']}; each model was trained on {results['trained']:,} tokens.",
        Verdict(
            "On isolated segments, a vanilla model is worse after every segment boundary.",
            fewer_bits([0.0] * len(cost["xl"]), cost["segments"])
            and fewer_bits(cost["xl"], cost["segments"]),
            f"bits per token in the first quarter of a segment minus its second half: "
            f"{signed_plus_minus(cost['segments'])}; of Transformer-XL on the same tokens "
            f"{signed_plus_minus(cost['xl'])}; {count}",
        ),
        Verdict(
            "A sliding window reduces this, and costs many times as much.",
            fewer_bits(cost["sliding"], cost["segments"]) and read["sliding"] > COST_RATIO * read["xl"],
            f"{signed_plus_minus(cost['sliding'])} bits in the first quarter minus the second half, where the window "
            f"itself costs {signed_plus_minus(_second_halves(results))} bits more than isolated segments; "
            f"{read['sliding']:.1f} tokens went through the layers for every predicted one, and "
            f"{read['xl']:.1f} in Transformer-XL (more than {COST_RATIO} times as many counts as shown); {count}",
        ),
        Verdict(
            "Transformer-XL is better than both, and than itself without a memory.",
            all(fewer_bits(average["xl"], average[mode]) for mode in ("segments", "sliding", "relative")),
            f"{plus_minus(average['xl'])} bits per token, against {plus_minus(average['sliding'])} with a sliding "
            f"window, {plus_minus(average['segments'])} on isolated segments, and "
            f"{plus_minus(average['relative'])} with its relative positions on isolated segments; {count}",
        ),
        Table(
            [
                "evaluation",
                "bits per token",
                "first quarter minus second half",
                "tokens read per predicted token",
            ],
            [
                [MODES[mode], plus_minus(average[mode]), signed_plus_minus(cost[mode]), f"{read[mode]:.1f}"]
                for mode in MODES
            ],
            "Mean ± half the range of seeds.",
        ),
    ]


def draw(results: Results) -> list[Picture]:
    figure, (left, right) = canvas(1, 2, width=10, height=3.6)
    curves = {
        mode: [mean(list(column)) for column in zip(*(one["bits"] for one in seeds), strict=True)]
        for mode, seeds in results["ways"].items()
    }
    for mode, curve in curves.items():
        left.plot(curve, label=MODES[mode])
        right.plot([one - other for one, other in zip(curve, curves["xl"], strict=True)], label=MODES[mode])
    left.set(title="loss", xlabel="position in the segment", ylabel="bits per token")
    right.set(title="loss minus Transformer-XL's", xlabel="position in the segment", ylabel="bits per token")
    right.legend()
    caption = (
        "The loss by position in the segment, and its difference to Transformer-XL's on the same tokens."
    )
    return [Picture("fragmentation", caption, figure)]


EXPERIMENT = Experiment(
    name="fragmentation",
    claim="Isolated segments fragment the context: each begins without any. A memory removes the problem.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=3,
)
