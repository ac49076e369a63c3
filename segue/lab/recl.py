"""Relative effective context length (RECL) of architectures of one size, with the published table."""

from collections.abc import Mapping, Sequence

from segue.checkpoint import Bundle, load
from segue.config import Reach, Reading, XLConfig
from segue.infer.evaluate import evaluate
from segue.infer.recl import Lengths, Member, Plan, relative_lengths
from segue.lab.architectures import Architecture, architecture_run, tuned_architecture
from segue.lab.cache import cached
from segue.lab.drawing import COLOURS, INK, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.published import published, source
from segue.lab.statistics import half_range, mean, plus_minus, seed_count
from segue.lab.trained import budget, scored_tokens, training_seconds

GROUP = ("Transformer-XL", "XL without recurrence", "vanilla Transformer", "LSTM", "GRU")
RECURRENT = ("LSTM", "GRU")
QUICK = Plan(step=16, longest=192, positions=300)
FULL = Plan(step=32, longest=640, positions=2000)


def measure(setting: Setting) -> Results:
    plan, size = QUICK if setting.quick else FULL, budget(setting)
    architectures = {name: tuned_architecture(setting, name) for name in GROUP}
    return {
        "shares": list(plan.shares),
        "step": plan.step,
        "longest": plan.longest,
        "segment": size.segment,
        "tokens": size.tokens,
        "scored": scored_tokens(setting),
        "kinds": {name: architecture.summary() for name, architecture in architectures.items()},
        "seeds": [_of_seed(setting, architectures, plan, seed) for seed in setting.seeds],
    }


def _of_seed(setting: Setting, architectures: Mapping[str, Architecture], plan: Plan, seed: int) -> Results:
    runs = {
        name: architecture_run(setting, architecture, seed) for name, architecture in architectures.items()
    }

    def lengths_and_bits() -> Results:
        bundles = {name: load(run) for name, run in runs.items()}
        group = {
            name: Member(bundle.model, _reading(bundle, plan.longest)) for name, bundle in bundles.items()
        }
        lengths = _summary(relative_lengths(group, setting.stream("test"), plan, setting.report))
        return {**lengths, "bits": {name: _bits(setting, bundle) for name, bundle in bundles.items()}}

    inputs = {
        "plan": plan.model_dump(mode="json"),
        "runs": [run.name for run in runs.values()],
    }
    seconds = {name: training_seconds(run) for name, run in runs.items()}
    return {**cached(setting, __name__, inputs, lengths_and_bits), "seconds": seconds}


def _reading(bundle: Bundle, longest: int) -> Reading:
    """How to read: models with relative positions get a memory as long as the context, however they were trained."""
    config = bundle.model.config
    if isinstance(config, XLConfig) and config.position_encoding.relative:
        return Reading(segment=bundle.reading.segment, reach=Reach(memory=longest))
    return bundle.reading


def _bits(setting: Setting, bundle: Bundle) -> float:
    limit = scored_tokens(setting)
    return evaluate(bundle.model, setting.stream("test"), bundle.reading, limit=limit).bits_per_byte


def _summary(measured: Lengths) -> Results:
    curves = {
        name: {f"{c}": nats for c, nats in sorted(curve.items())} for name, curve in measured.curves.items()
    }
    return {
        "lengths": {name: list(lengths) for name, lengths in measured.lengths.items()},
        "at_least": list(measured.unbounded),
        "positions": measured.positions,
        "nats": curves,
    }


def lengths_of(results: Results, name: str, share: int) -> list[float]:
    """The RECL of each seed at one of the shares."""
    return [one["lengths"][name][share] for one in results["seeds"]]


def tell(results: Results) -> list[Block]:
    theirs = published("recl")
    first = {group["name"]: group["rows"] for group in theirs["groups"]}
    large, small = first.values()
    best = max(RECURRENT, key=lambda name: mean(lengths_of(results, name, 0)))
    rows = [[name, *_ours(results, name), *_theirs(theirs, name), *_facts(results, name)] for name in GROUP]
    ends = sorted({name for one in results["seeds"] for name in one["at_least"]})
    return [
        "How much context does a model use? A longer context counts while it lowers perplexity by at least 1 %, "
        "measured at the positions that are hardest for the best model of the group: the hardest "
        f"tenth (r = 0.1), half, or all of {results['seeds'][0]['positions']:,} positions. Five architectures of one "
        f"size, trained on the same {results['tokens']:,} tokens in segments of {results['segment']}; the context "
        f"grows in steps of {results['step']}."
        + (f" Still gaining at {results['longest']}: {', '.join(ends)}." if ends else ""),
        _longer(
            results,
            "Transformer-XL",
            best,
            large["Transformer-XL"][0] / large["QRNN"][0],
            "recurrent networks",
        ),
        _longer(
            results,
            "Transformer-XL",
            "vanilla Transformer",
            small["Transformer-XL"][0] / small["vanilla Transformer"][0],
            "a vanilla Transformer",
        ),
        _longer(
            results,
            "Transformer-XL",
            "XL without recurrence",
            small["Transformer-XL"][0] / small["XL without recurrence"][0],
            "the same without recurrence",
        ),
        Table(
            [
                "model",
                *(f"r = {share:g}" for share in results["shares"]),
                "published",
                "bits per byte",
                "optimizer, learning rate",
                "parameters",
            ],
            rows,
            "Ours: mean ± half the range of seeds; bits on the test split, read as in training. Published, r = 0.1 / "
            f"0.5 / 1: {theirs['data']}, {'; '.join(first)} ({source(theirs['source'])}).",
        ),
    ]


def _longer(results: Results, name: str, other: str, ratio: float, called: str) -> Verdict:
    """Whether one RECL is longer with every seed, and by how much, with the published difference."""
    ours, others = lengths_of(results, name, 0), lengths_of(results, other, 0)
    more = mean(ours) / mean(others) - 1
    return Verdict(
        f"Transformer-XL uses a longer context than {called}; published: {ratio - 1:.0%} longer.",
        all(mine > theirs for mine, theirs in zip(ours, others, strict=True)),
        f"{plus_minus(ours, 0)} tokens against {plus_minus(others, 0)} of {other} at r = {results['shares'][0]:g}, "
        f"{more:+.0%}; {seed_count(ours)}",
    )


def _ours(results: Results, name: str) -> list[str]:
    return [plus_minus(lengths_of(results, name, share), 0) for share in range(len(results["shares"]))]


def _theirs(theirs: Results, name: str) -> list[str]:
    rows = (group["rows"].get(name) for group in theirs["groups"])
    return ["; ".join("/".join(map(str, lengths)) for lengths in rows if lengths) or "–"]


def _facts(results: Results, name: str) -> list[str]:
    architecture = results["kinds"][name]
    bits = plus_minus([one["bits"][name] for one in results["seeds"]])
    return [
        bits,
        f"{architecture['optimizer']} {architecture['learning_rate']:g}",
        f"{architecture['parameters']:,}",
    ]


def draw(results: Results) -> list[Picture]:
    figure, (left, right) = canvas(1, 2, width=10.5, height=3.8)
    for place, name in enumerate(GROUP):
        curves = [one["nats"][name] for one in results["seeds"]]
        contexts = [context for context in curves[0] if all(context in curve for curve in curves)]
        nats = [mean([curve[context] for curve in curves]) for context in contexts]
        left.plot([int(context) for context in contexts], nats, "o-", ms=3, color=COLOURS[place], label=name)
        _bars(right, results, name, place)
    left.set(xlabel="tokens of context", ylabel="nats per token")
    left.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    names = [f"r = {share:g}" for share in results["shares"]]
    right.set(ylabel="RECL, tokens", xticks=range(len(names)), xticklabels=names)
    caption = "Loss by context length, each position read from scratch; and the RECL of each model."
    return [Picture("recl", caption, figure)]


def _bars(axis: object, results: Results, name: str, place: int) -> None:
    shares: Sequence[int] = range(len(results["shares"]))
    width = 0.8 / len(GROUP)
    lengths = [lengths_of(results, name, share) for share in shares]
    axis.bar(  # type: ignore[attr-defined]
        [share + (place - len(GROUP) / 2 + 0.5) * width for share in shares],
        [mean(one) for one in lengths],
        width,
        yerr=[half_range(one) for one in lengths],
        ecolor=INK,
        color=COLOURS[place],
    )


EXPERIMENT = Experiment(
    name="recl",
    claim="Transformer-XL uses a much longer context than recurrent networks and vanilla Transformers.",
    measure=measure,
    tell=tell,
    draw=draw,
)
