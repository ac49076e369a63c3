"""What the page says and draws of the context that models use; the measurement is in `recl.py`."""

import math
from collections.abc import Sequence
from typing import Any

from segue.infer.recl import GAIN
from segue.lab.context_lengths import CONFIDENCE
from segue.lab.drawing import COLOURS, INK, canvas
from segue.lab.experiment import Block, Picture, Results, Table, Verdict
from segue.lab.published import published, source
from segue.lab.statistics import mean

FIRST = "Transformer-XL"
GROUPS = {
    "group 1": (FIRST, "QRNN", "LSTM"),
    "group 2": (FIRST, "XL with Shaw's positions", "XL without recurrence", "vanilla Transformer"),
    "convolutions": (FIRST, "GCNN", "TCN"),
}
"""The groups of the published table, in its order; convolutions have one of their own. The first is compared."""

CONTROL = "control: foreign text"
"""The first model, reading text from elsewhere before its last few tokens: what they say cannot help."""

DEFINITIONS = {"paper": "RECL as published", "mean": "by mean gains"}

SURE = 1 - (1 - CONFIDENCE) / 2
"""The share of resampled texts in which one length must be longer than another."""


def tell(results: Results) -> list[Block]:
    theirs, groups = published("recl"), results["groups"]
    return [
        "How much context does a model use? The same positions are predicted again and again, each time from an empty "
        "state with the last c tokens only (or up to an eighth fewer), "
        f"c = {', '.join(map(str, results['contexts']))}. "
        f"All models have one size and were trained once, on the same {results['tokens']:,} tokens, with an attention "
        f"length of {2 * results['segment']}. There are {results['positions']:,} positions in {results['blocks']} "
        "blocks of test text; intervals hold 95 % of "
        f"{results['resamples']} texts that are made of these blocks, drawn with repetition.",
        "RECL, as published: c grows while perplexity falls by 1 % from one c to the next, at the positions that are "
        "hardest for the best model of the group (r = 0.1, 0.5, 1: the hardest tenth, half, all). At each position the "
        "smaller of two losses counts: that of the group's best with the shorter context, or the model's own with the "
        "longer one. That rewards noise: of two numbers that fluctuate around the same mean, the smaller one is below "
        "it. The control shows how much: it reads foreign text before its last "
        f"{results['contexts'][0]} tokens, so that a longer context says nothing, and yet its RECL is "
        f"{_control(results, 'paper')}. Beside it is a definition without minima: the shortest context from which no "
        "longer one lowers mean perplexity by 1 %, at positions that are chosen once, by the group's losses with the "
        f"shortest context; the control's is {_control(results, 'mean')}. A length counts as longer if it is so in "
        f"{SURE:.1%} of the resampled texts, and if the control's is shorter as surely.",
        *_filling(results),
        *(
            _longer(results, group, other, how)
            for group, other in (("group 1", _longest_recurrent(groups)), ("group 2", GROUPS["group 2"][-1]))
            for how in DEFINITIONS
        ),
        _longer(results, "group 2", "XL without recurrence", "mean"),
        *(_table(results, group, theirs) for group in groups),
        _models(results),
    ]


def _control(results: Results, how: str) -> str:
    """The control's lengths at all shares, in each group."""
    return "; ".join(
        f"{'/'.join(f'{value:g}' for _, value, _ in figures['lengths'][CONTROL][how])} in {group}"
        for group, figures in results["groups"].items()
    )


def _filling(results: Results) -> list[str]:
    """What the control gains, where it does: some of its targets see more than the tokens that are theirs."""
    foreign, own = (results["curves"][name]["nats"] for name in (CONTROL, FIRST))
    if 1 - math.exp(min(foreign) - foreign[0]) < GAIN:
        return []
    return [
        f"The control gains more than noise: foreign text takes its mean loss from {foreign[0]:.3f} to "
        f"{min(foreign):.3f} nats, where the text's own context takes it to {min(own):.3f}. Up to an eighth of a "
        "window is scored at once, so its later targets see more of their own text than the first: the control is "
        "stricter than it should be, and what is shown in spite of it holds all the more."
    ]


def _longest_recurrent(groups: Results) -> str:
    lengths = groups["group 1"]["lengths"]
    return max(
        GROUPS["group 1"][1:], key=lambda name: mean([value for _, value, _ in lengths[name]["paper"]])
    )


def _longer(results: Results, group: str, other: str, how: str) -> Verdict:
    """Whether the first model's length is surely longer than another's and than the control's.

    At r = 0.1, which the published comparison quotes; by means at r = 1, which has the most positions and no choice.
    """
    figures, theirs = results["groups"][group], _published_rows(group)
    share = 0 if how == "paper" else len(results["shares"]) - 1
    (_, ours, _), (_, others, _) = (figures["lengths"][name][how][share] for name in (FIRST, other))
    sure, beyond = (figures["longer"][name][how][share] for name in (other, CONTROL))
    said = ""
    if how == "paper" and other in theirs:
        said = f"; published: {theirs[FIRST][0] / theirs[other][0] - 1:.0%} longer"
    return Verdict(
        f"Transformer-XL uses a longer context than {_article(other)} ({DEFINITIONS[how]}{said}).",
        min(sure, beyond) >= SURE,
        f"{_length(results, figures, FIRST, how, share)} tokens against {_length(results, figures, other, how, share)} "
        f"in {group}, r = {results['shares'][share]:g}; longer in {sure:.0%} of the resampled texts, "
        f"and than the control's {figures['lengths'][CONTROL][how][share][1]:g} in {beyond:.0%}",
        size=f"{ours:g} against {others:g} tokens, {ours / others - 1:+.0%}",
        sure=f"longer in {sure:.0%} of resampled texts",
    )


def _article(name: str) -> str:
    return {
        "QRNN": "a QRNN",
        "LSTM": "an LSTM",
        "vanilla Transformer": "a vanilla Transformer",
        "XL without recurrence": "the same without recurrence",
    }[name]


def _length(results: Results, group: Results, name: str, how: str, share: int) -> str:
    """A length with its interval; "at least" where the longest context still gains."""
    low, value, high = group["lengths"][name][how][share]
    most = results["models"].get(name, {}).get("ceiling") or results["contexts"][-1]
    at_least = "at least " if value >= results["contexts"][-1] else ""
    low, value, high = (min(one, most) for one in (low, value, high))
    return f"{at_least}{value:g} ({low:g} to {high:g})" if low < high else f"{at_least}{value:g}"


def _published_rows(group: str) -> Any:
    groups = published("recl")["groups"]
    return {"group 1": groups[0]["rows"], "group 2": groups[1]["rows"]}.get(group, {})


def _table(results: Results, group: str, theirs: Results) -> Table:
    figures, rows = results["groups"][group], _published_rows(group)
    shares = range(len(results["shares"]))
    return Table(
        [
            "model",
            *(
                f"{name}, r = {results['shares'][share]:g}"
                for name in ("RECL", "mean gains")
                for share in shares
            ),
            "published RECL",
        ],
        [
            [
                name,
                *(_length(results, figures, name, how, share) for how in DEFINITIONS for share in shares),
                "/".join(map(str, rows.get(name, ("–",)))),
            ]
            for name in figures["lengths"]
        ],
        f"{group.capitalize()}: tokens of context, with the interval of resampled texts. "
        + (f"Published: {theirs['data']}, words ({source(theirs['source'])})." if rows else ""),
    )


def _models(results: Results) -> Table:
    return Table(
        ["model", "ceiling", "bits per byte", "training segment", "learning rate", "parameters"],
        [
            [
                name,
                f"{model['ceiling']} tokens" if model["ceiling"] else "none",
                f"{model['bits']:.3f}",
                f"{model['segment']}",
                f"{model['learning_rate']:g}",
                f"{model['parameters']:,}",
            ]
            for name, model in results["models"].items()
        ],
        "The models. A ceiling is the most tokens that a prediction can depend on: the field of a convolution, or an "
        f"isolated segment. Bits per byte of {results['scored']:,} test tokens, read as in training.",
    )


def draw(results: Results) -> list[Picture]:
    contexts: Sequence[int] = results["contexts"]
    figure, (left, right) = canvas(1, 2, width=10.5, height=4.2)
    for place, (name, curve) in enumerate(results["curves"].items()):
        style: dict[str, Any] = _style(name, place)
        left.plot(contexts, curve["nats"], label=name, **style)
        low, gains, high = zip(*curve["gains"], strict=True)
        right.plot(contexts[1:], [100 * gain for gain in gains], **style)
        right.fill_between(
            contexts[1:],
            [100 * one for one in low],
            [100 * one for one in high],
            color=style["color"],
            alpha=0.12,
        )
    left.set(xlabel="tokens of context", ylabel="nats per token", title="mean loss")
    right.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    right.set(xlabel="tokens of context", ylabel="per cent", title="mean gain in perplexity of each step")
    left.legend(fontsize="x-small", ncols=2)
    for axis in (left, right):
        _logarithmic(axis, contexts)
    return [
        Picture(
            "recl",
            "Loss by context length, and what each longer context gains, with its interval; dotted: 1 %.",
            figure,
        ),
        _paper_gains(results),
    ]


def _paper_gains(results: Results) -> Picture:
    contexts, names = results["contexts"], list(results["curves"])
    figure, axes = canvas(1, len(results["groups"]), width=12, height=3.8)
    for axis, (label, group) in zip(axes, results["groups"].items(), strict=True):
        for name, gains in group["gains"].items():
            axis.plot(
                contexts[1:], [100 * gain for gain in gains], label=name, **_style(name, names.index(name))
            )
        axis.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axis.set(xlabel="tokens of context", ylabel="per cent", title=f"gain as published, {label}")
        axis.legend(fontsize="x-small")
        _logarithmic(axis, contexts)
    caption = (
        f"The published gain of each step at r = {results['shares'][0]:g}, against the best model of the group. "
        "The control gains too, from noise alone."
    )
    return Picture("recl-gains", caption, figure)


def _style(name: str, place: int) -> dict[str, Any]:
    if name == CONTROL:
        return {"color": INK, "linestyle": "--", "linewidth": 1}
    return {"color": COLOURS[place % len(COLOURS)], "marker": "o", "ms": 3}


def _logarithmic(axis: Any, contexts: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    ticks = contexts[::2]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
