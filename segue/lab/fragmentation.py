"""What a seam costs: surprise by place inside the segment, for three ways to read the same text.

Letters: T tokens in the segment.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from segue.checkpoint import Bundle
from segue.infer.evaluate import sliding_surprises, surprises
from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.spread import fewer_bits, mean, said, signed, with_seeds
from segue.lab.trained import budget, recipe_for, scored_tokens, trained
from segue.lab.tuning import tuned
from segue.nn.language import LanguageModel

WAYS = {
    "segments": "vanilla, by segments",
    "sliding": "vanilla, sliding by one",
    "xl": "Transformer-XL, with memory",
}

MANY = 10
"""Times as many tokens through the layers: many times as much."""


def measure(setting: Setting) -> Results:
    segment = budget(setting).segment
    total = scored_tokens(setting) // segment * segment
    found: dict[str, list[Results]] = {way: [] for way in WAYS}
    recipes = {
        "vanilla": recipe_for(setting, seed=setting.seed, encoding="sinusoidal", memory=0),
        "xl": recipe_for(setting, seed=setting.seed),
    }
    best = {name: tuned(setting, recipe, name) for name, recipe in recipes.items()}
    for seed in setting.seeds:
        vanilla, xl = (trained(setting, best[name].seeded(seed), f"{name}, seed {seed}") for name in recipes)
        for way in WAYS:
            found[way].append(_read(setting, xl if way == "xl" else vanilla, way, total))
    return {
        "segment": segment,
        "scored": total,
        "trained": budget(setting).tokens,
        "models": {n: b.told() for n, b in best.items()},
        "ways": found,
    }


def _read(setting: Setting, bundle: Bundle, way: str, total: int) -> Results:
    """Bits by place, and how many tokens went through the layers for each that was predicted."""
    stream, nats, reading = setting.stream("test"), list[Tensor](), bundle.reading
    pieces = (
        sliding_surprises(bundle.model, stream, reading, total, batch=128)
        if way == "sliding"
        else surprises(bundle.model, stream, reading, total)
    )
    done = 0
    with tokens_read(bundle.model) as read:
        for piece in pieces:
            nats.append(piece)
            done += len(piece)
            setting.report(f"reading {WAYS[way]}", done, total)
    by_place = torch.cat(nats).view(-1, reading.segment).mean(dim=0) / math.log(2)
    return {"bits": [round(value, 4) for value in by_place.tolist()], "read": sum(read) / done}


@contextmanager
def tokens_read(model: LanguageModel) -> Iterator[list[int]]:
    """How many tokens each call of the model sends through its layers, those of windows that are read anew included."""
    counts: list[int] = []
    hook = model.register_forward_pre_hook(lambda _model, given: counts.append(given[0].numel()))
    try:
        yield counts
    finally:
        hook.remove()


def seam(bits: list[float]) -> float:
    """How much more the first quarter of a segment surprises than its second half."""
    size = len(bits)
    return mean(bits[: size // 4]) - mean(bits[size // 2 :])


def seams(results: Results, way: str) -> list[float]:
    """The same, for each seed."""
    return [seam(one["bits"]) for one in results["ways"][way]]


def tell(results: Results) -> list[Block]:
    ways = results["ways"]
    cost = {way: seams(results, way) for way in WAYS}
    whole = {way: [mean(one["bits"]) for one in found] for way, found in ways.items()}
    read = {way: found[0]["read"] for way, found in ways.items()}
    many = with_seeds(cost["xl"])
    return [
        "A vanilla Transformer reads text in isolated segments. Its first tokens have nothing before them to "
        "go by, so it begins every segment as if it had just woken up: the context is fragmented. Sliding the "
        "segment on by one token at a time, and reading all of it anew for each, gives every token a full "
        "context, at a price. Transformer-XL carries its memory over the seam. All three read the same "
        f"{results['scored']:,} tokens, in segments of {results['segment']}; both models were trained on "
        f"{results['trained']:,} tokens.",
        Verdict(
            "Read by segments, a vanilla model is worse behind every seam.",
            fewer_bits([0.0] * len(cost["xl"]), cost["segments"])
            and fewer_bits(cost["xl"], cost["segments"]),
            f"the first quarter of a segment costs {signed(cost['segments'])} bits per token against its "
            f"second half; the same tokens cost Transformer-XL {signed(cost['xl'])}; {many}",
        ),
        Verdict(
            "Sliding by one relieves it, and costs many times as much.",
            fewer_bits(cost["sliding"], cost["segments"]) and read["sliding"] > MANY * read["xl"],
            f"{signed(cost['sliding'])} bits in the first quarter against the second half; counted, "
            f"{read['sliding']:.1f} tokens went through the layers for every one that was predicted, and "
            f"{read['xl']:.1f} of Transformer-XL's ({MANY} times as many counts as shown); {many}",
        ),
        Verdict(
            "Transformer-XL is better than either.",
            fewer_bits(whole["xl"], whole["segments"]) and fewer_bits(whole["xl"], whole["sliding"]),
            f"{said(whole['xl'])} bits per token, against {said(whole['sliding'])} sliding and "
            f"{said(whole['segments'])} by segments; {many}",
        ),
        Table(
            [
                "way to read",
                "bits per token",
                "first quarter less second half",
                "tokens read for each predicted",
            ],
            [[WAYS[way], said(whole[way]), signed(cost[way]), f"{read[way]:.1f}"] for way in WAYS],
            "Mean ± half the range of seeds.",
        ),
    ]


def draw(results: Results) -> list[Picture]:
    figure, (left, right) = canvas(1, 2, width=10, height=3.6)
    curves = {
        way: [mean(list(column)) for column in zip(*(one["bits"] for one in found), strict=True)]
        for way, found in results["ways"].items()
    }
    for way, curve in curves.items():
        left.plot(curve, label=WAYS[way])
        right.plot([one - other for one, other in zip(curve, curves["xl"], strict=True)], label=WAYS[way])
    left.set(title="surprise", xlabel="place in the segment", ylabel="bits per token")
    right.set(title="more than Transformer-XL", xlabel="place in the segment", ylabel="bits per token")
    right.legend()
    caption = "Surprise by place in the segment, and how much more than Transformer-XL's at the same tokens."
    return [Picture("fragmentation", caption, figure)]


EXPERIMENT = Experiment(
    name="fragmentation",
    claim="Isolated segments fragment the context: a model begins each of them anew. Memory mends that.",
    measure=measure,
    tell=tell,
    draw=draw,
    version=2,
)
