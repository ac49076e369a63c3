"""How much context each kind of model makes use of: RECL of a group of one size, beside the published table."""

from collections.abc import Mapping, Sequence

from segue.checkpoint import Bundle, load
from segue.config import Reach, Reading, XLConfig
from segue.infer.evaluate import evaluate
from segue.infer.recl import Lengths, Member, Plan, relative_lengths
from segue.lab.drawing import COLOURS, INK, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.kept import kept
from segue.lab.kinds import Kind, kind_run, tuned
from segue.lab.published import published, source
from segue.lab.spread import half_range, mean, said, with_seeds
from segue.lab.trained import budget, scored_tokens, training_seconds

GROUP = ("Transformer-XL", "XL without recurrence", "vanilla Transformer", "LSTM", "GRU")
RECURRENT = ("LSTM", "GRU")
QUICK = Plan(step=16, longest=192, positions=300)
FULL = Plan(step=32, longest=640, positions=2000)


def measure(setting: Setting) -> Results:
    plan, size = QUICK if setting.quick else FULL, budget(setting)
    kinds = {name: tuned(setting, name) for name in GROUP}
    return {
        "shares": list(plan.shares),
        "step": plan.step,
        "longest": plan.longest,
        "segment": size.segment,
        "tokens": size.tokens,
        "scored": scored_tokens(setting),
        "kinds": {name: kind.told() for name, kind in kinds.items()},
        "seeds": [_of_seed(setting, kinds, plan, seed) for seed in setting.seeds],
    }


def _of_seed(setting: Setting, kinds: Mapping[str, Kind], plan: Plan, seed: int) -> Results:
    runs = {name: kind_run(setting, kind, seed) for name, kind in kinds.items()}

    def found() -> Results:
        bundles = {name: load(run) for name, run in runs.items()}
        group = {
            name: Member(bundle.model, _reading(bundle, plan.longest)) for name, bundle in bundles.items()
        }
        lengths = _told(relative_lengths(group, setting.stream("test"), plan, setting.report))
        return {**lengths, "bits": {name: _bits(setting, bundle) for name, bundle in bundles.items()}}

    what = {
        "plan": plan.model_dump(mode="json"),
        "runs": [run.name for run in runs.values()],
    }
    seconds = {name: training_seconds(run) for name, run in runs.items()}
    return {**kept(setting, __name__, what, found), "seconds": seconds}


def _reading(bundle: Bundle, longest: int) -> Reading:
    """Relative positions may be read with a memory as long as the context, however they were trained."""
    config = bundle.model.config
    if isinstance(config, XLConfig) and config.position_encoding.relative:
        return Reading(segment=bundle.reading.segment, reach=Reach(memory=longest))
    return bundle.reading


def _bits(setting: Setting, bundle: Bundle) -> float:
    limit = scored_tokens(setting)
    return evaluate(bundle.model, setting.stream("test"), bundle.reading, limit=limit).bits_per_byte


def _told(found: Lengths) -> Results:
    curves = {
        name: {f"{c}": nats for c, nats in sorted(curve.items())} for name, curve in found.curves.items()
    }
    return {
        "lengths": {name: list(lengths) for name, lengths in found.lengths.items()},
        "at_least": list(found.unbounded),
        "positions": found.positions,
        "nats": curves,
    }


def lengths_of(results: Results, name: str, share: int) -> list[float]:
    """Of each seed, at one of the shares."""
    return [one["lengths"][name][share] for one in results["seeds"]]


def tell(results: Results) -> list[Block]:
    theirs = published("recl")
    first = {group["name"]: group["rows"] for group in theirs["groups"]}
    large, small = first.values()
    best = max(RECURRENT, key=lambda name: mean(lengths_of(results, name, 0)))
    rows = [[name, *_ours(results, name), *_theirs(theirs, name), *_facts(results, name)] for name in GROUP]
    ends = sorted({name for one in results["seeds"] for name in one["at_least"]})
    return [
        "How much of what it has read does a model make use of? A longer context counts for as long as it makes the "
        "model at least 1 % less perplexed, at the places that even the best of the group finds hard: the hardest "
        f"tenth (r = 0.1), half, or all of {results['seeds'][0]['positions']:,} places. Five kinds of models of one "
        f"size, trained on the same {results['tokens']:,} tokens in segments of {results['segment']}; contexts grow by "
        f"{results['step']}."
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
                "tuned to",
                "size",
            ],
            rows,
            "Ours: mean ± half the range of seeds, bits on test text as each was trained to read. Published, r = 0.1 / "
            f"0.5 / 1: {theirs['data']}, {'; '.join(first)} ({source(theirs['source'])}).",
        ),
    ]


def _longer(results: Results, name: str, other: str, ratio: float, called: str) -> Verdict:
    """Whether one is longer in every seed, and by how much, beside what was published."""
    ours, others = lengths_of(results, name, 0), lengths_of(results, other, 0)
    more = mean(ours) / mean(others) - 1
    return Verdict(
        f"Transformer-XL makes use of a longer context than {called}; published: {ratio - 1:.0%} longer.",
        all(mine > theirs for mine, theirs in zip(ours, others, strict=True)),
        f"{said(ours, 0)} tokens against {said(others, 0)} of {other} at r = {results['shares'][0]:g}, {more:+.0%}; "
        f"{with_seeds(ours)}",
    )


def _ours(results: Results, name: str) -> list[str]:
    return [said(lengths_of(results, name, share), 0) for share in range(len(results["shares"]))]


def _theirs(theirs: Results, name: str) -> list[str]:
    found = (group["rows"].get(name) for group in theirs["groups"])
    return ["; ".join("/".join(map(str, lengths)) for lengths in found if lengths) or "–"]


def _facts(results: Results, name: str) -> list[str]:
    kind = results["kinds"][name]
    bits = said([one["bits"][name] for one in results["seeds"]])
    return [bits, f"{kind['optimizer']} {kind['learning_rate']:g}", f"{kind['parameters']:,}"]


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
    caption = (
        "Nats by length of context, each position read anew; and what of the context each model makes use of."
    )
    return [Picture("recl", caption, figure)]


def _bars(axis: object, results: Results, name: str, place: int) -> None:
    shares: Sequence[int] = range(len(results["shares"]))
    wide = 0.8 / len(GROUP)
    found = [lengths_of(results, name, share) for share in shares]
    axis.bar(  # type: ignore[attr-defined]
        [share + (place - len(GROUP) / 2 + 0.5) * wide for share in shares],
        [mean(one) for one in found],
        wide,
        yerr=[half_range(one) for one in found],
        ecolor=INK,
        color=COLOURS[place],
    )


EXPERIMENT = Experiment(
    name="recl",
    claim="Transformer-XL makes use of a much longer context than recurrent networks and vanilla Transformers.",
    measure=measure,
    tell=tell,
    draw=draw,
)
