"""What the page says and draws of the context that models use; the measurement is in `recl.py`."""

import math
from collections.abc import Sequence
from typing import Any

from segue.infer.recl import GAIN
from segue.lab.context_lengths import CONFIDENCE, DEFINITIONS
from segue.lab.drawing import COLOURS, INK, canvas
from segue.lab.experiment import Block, Picture, Results, Table, Verdict
from segue.lab.published import published, source
from segue.lab.statistics import mean

FIRST = "Transformer-XL"
"""The model that is compared with the others of its groups, and whose controls are read."""

RECURRENT = ("QRNN", "LSTM")

TOKENS = {"bytes": "bytes", "bpe": "pieces of words (BPE)", "words": "words"}
"""What tokens are, by tokenizer."""

SURE = 1 - (1 - CONFIDENCE) / 2
"""The share of resampled texts in which one length must be longer than another."""


def tell(results: Results) -> list[Block]:
    paragraphs = [
        "How much context does a model use? The same positions are predicted again and again, each time from an empty "
        "state with the last c tokens only (or up to an eighth fewer), "
        f"c = {', '.join(map(str, results['contexts']))}. Intervals hold 95 % of {results['resamples']} texts that are "
        "made of blocks of the test text, drawn with repetition.",
        "RECL, as published: c grows while perplexity falls by 1 % from one c to the next, at the positions that are "
        "hardest for the best model of the group (r = 0.1, 0.5, 1: the hardest tenth, half, all). At each position the "
        "smaller of two losses counts: that of the group's best with the shorter context, or the model's own with the "
        "longer one. That rewards noise: of two numbers that fluctuate around the same mean, the smaller one is below "
        "it. Beside it is one without minima at single positions: the shortest context from which no longer one lowers "
        "mean perplexity by 1 %, at positions that are chosen once, by the group's losses with the shortest context.",
        f"A length counts as longer than another model's if it is so in {SURE:.1%} of the resampled texts, and as "
        "surely longer than that of a control: the same Transformer-XL, for which only the last tokens are those of "
        "the text, at least as many as the other model's length. What precedes them comes from elsewhere. If "
        "Transformer-XL used no more context than the other model, this is what would be measured.",
    ]
    return [*paragraphs, *_measured(results)]


def _measured(results: Results) -> list[Block]:
    """What follows from the figures of these models."""
    theirs, groups = published("recl"), results["groups"]
    rivals = [("group 1", _longest_recurrent(groups)), ("group 2", "vanilla Transformer")]
    compared = [(group, other, how) for group, other in rivals for how in DEFINITIONS]
    if "XL without recurrence" in results["models"]:
        compared.append(("group 2", "XL without recurrence", "mean"))
    tokens = TOKENS.get(results["tokenizer"], "those of the corpus")
    return [
        f"Tokens are {tokens}. All models have one size and were trained once, on the same {results['tokens']:,} "
        f"tokens, with an attention length of {2 * results['segment']}. There are {results['positions']:,} positions "
        f"in {results['blocks']} blocks.",
        _artefact(results),
        *_cold_start(results),
        *_unfamiliar(results),
        *(_longer(results, *pair) for pair in compared),
        *(_table(results, group, theirs) for group in groups),
        _models(results),
    ]


def _artefact(results: Results) -> str:
    """How much of a RECL as published is the reward of noise."""
    label, group = next(iter(results["groups"].items()))
    (_, used, _), (_, said, _) = (group["lengths"][FIRST][how][-1] for how in ("mean", "paper"))
    nats = dict(zip(results["contexts"], results["curves"][FIRST]["nats"], strict=True))
    controls = "; ".join(
        f"{own} own tokens: {_shares(group, name, 'paper')} as published, {_shares(group, name, 'mean')} by means"
        for name, own in results["controls"].items()
    )
    return (
        f"How much noise is rewarded shows in {FIRST} itself: its mean loss is {nats[used]:.3f} nats with {used:g} "
        f"tokens, {min(nats.values()):.3f} at best and {nats[said]:.3f} with {said:g}, which is its RECL as published "
        f"(in {label}, r = {results['shares'][-1]:g}). The controls can use no more than their own tokens; at r = "
        f"{'/'.join(f'{share:g}' for share in results['shares'])} they have, with {controls}."
    )


def _shares(group: Results, name: str, how: str) -> str:
    """The lengths at all shares."""
    return "/".join(f"{value:g}" for _, value, _ in group["lengths"][name][how])


def _cold_start(results: Results) -> list[str]:
    """What foreign text gains by itself, where it does: more to attend to than an empty state."""
    said = []
    for name, own in results["controls"].items():
        gain = _gain_beyond(results, name, own)
        if gain >= GAIN:
            said.append(f"{gain:.1%} of perplexity with {own} own tokens")
    if not said:
        return []
    return [
        f"With foreign text, too, the lowest mean loss is lower: it saves {', '.join(said)}. Either any text helps a "
        "window that would begin in an empty state, or the foreign texts, drawn anew for every length, happen to "
        "differ; the intervals in the tables hold both."
    ]


def _unfamiliar(results: Results) -> list[str]:
    """Where the model with memory is worse with the shortest context than the same without: not all gain is use."""
    curves, other = results["curves"], "XL without recurrence"
    if other not in curves or curves[FIRST]["nats"][0] <= curves[other]["nats"][0]:
        return []
    ours, theirs = (curves[name]["nats"] for name in (FIRST, other))
    return [
        f"With {results['contexts'][0]} tokens {FIRST} has {ours[0]:.3f} nats, and the same model without recurrence "
        f"{theirs[0]:.3f}; at best they have {min(ours):.3f} and {min(theirs):.3f}. Trained with a memory, it hardly "
        "ever reads from an empty state, and is bad at it. So a part of its gain with short contexts is no use of "
        "context, and lengths are told by where gains end. What contexts beyond half a segment gain stands in the "
        "last table."
    ]


def _gain_beyond(results: Results, name: str, context: int) -> float:
    """The most that perplexity falls with contexts longer than this one, of its mean."""
    nats = results["curves"][name]["nats"][results["contexts"].index(context) :]
    return 1 - math.exp(min(nats) - nats[0])


def _longest_recurrent(groups: Results) -> str:
    lengths = groups["group 1"]["lengths"]
    return max(
        (name for name in RECURRENT if name in lengths),
        key=lambda name: mean([value for _, value, _ in lengths[name]["paper"]]),
    )


def _longer(results: Results, group: str, other: str, how: str) -> Verdict:
    """Whether the first model's length is surely longer than another's and than that of the other's control.

    At r = 0.1, which the published comparison quotes; by means at r = 1, which has the most positions and no choice.
    """
    figures, theirs = results["groups"][group], _published_rows(group)
    share = 0 if how == "paper" else len(results["shares"]) - 1
    (_, ours, _), (_, others, _) = (figures["lengths"][name][how][share] for name in (FIRST, other))
    control = _control(results, others)
    sure, beyond = (figures["longer"][name][how][share] for name in (other, control))
    said = ""
    if how == "paper" and other in theirs:
        said = f"; published: {theirs[FIRST][0] / theirs[other][0] - 1:.0%} longer"
    return Verdict(
        f"{_models_of(results)} uses a longer context than {_article(other)} ({DEFINITIONS[how]}{said}).",
        min(sure, beyond) >= SURE,
        f"{_length(results, figures, FIRST, how, share)} tokens against {_length(results, figures, other, how, share)} "
        f"in {group}, r = {results['shares'][share]:g}; longer in {sure:.0%} of the resampled texts, and in "
        f"{beyond:.0%} longer than the {figures['lengths'][control][how][share][1]:g} of the {control}",
        size=f"{ours:g} against {others:g} tokens, {ours / others - 1:+.0%}",
        sure=f"longer in {sure:.0%} of resampled texts, than the control's in {beyond:.0%}",
    )


def _models_of(results: Results) -> str:
    return f"On words, {FIRST}" if results["tokenizer"] == "words" else FIRST


def _control(results: Results, length: float) -> str:
    """The control with the fewest own tokens that are at least so many; the one with the most if none is."""
    controls: dict[str, int] = results["controls"]
    return next((name for name, own in controls.items() if own >= length), list(controls)[-1])


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
    contexts: Sequence[int] = results["contexts"]
    half = max((one for one in contexts if one <= results["segment"] // 2), default=contexts[0])
    unit, digits = ("bits per byte", 3) if results["unit"] == "bits_per_byte" else ("perplexity", 1)
    return Table(
        [
            *("model", "ceiling", unit, f"gain beyond {half} tokens"),
            *("training segment", "learning rate", "parameters"),
        ],
        [
            [
                name,
                f"{model['ceiling']} tokens" if model["ceiling"] else "none",
                f"{model['score']:.{digits}f}",
                f"{_gain_beyond(results, name, half):.1%}",
                f"{model['segment']}",
                f"{model['learning_rate']:g}",
                f"{model['parameters']:,}",
            ]
            for name, model in results["models"].items()
        ],
        "The models. A ceiling is the most tokens that a prediction can depend on: the field of a convolution, or an "
        f"isolated segment. {unit.capitalize()} of {results['scored']:,} test tokens, read as in training. "
        f"The learning rate is {results['slower']:g} of the best of two that were tried for a sixth of the steps: more "
        "steps want a lower one.",
    )


def draw(results: Results, name: str) -> list[Picture]:
    return [_curves(results, name), _paper_gains(results, f"{name}-gains")]


def _curves(results: Results, name: str) -> Picture:
    contexts: Sequence[int] = results["contexts"]
    figure, (left, right) = canvas(1, 2, width=10.5, height=4.2)
    for model, curve in results["curves"].items():
        style = _style(results, model)
        left.plot(contexts, curve["nats"], label=model, **style)
        low, gains, high = ([100 * one for one in column] for column in zip(*curve["gains"], strict=True))
        right.plot(contexts[1:], gains, **style)
        if model in results["models"]:
            right.fill_between(contexts[1:], low, high, color=style["color"], alpha=0.12)
    left.set(xlabel="tokens of context", ylabel="nats per token", title="mean loss")
    right.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    right.set(xlabel="tokens of context", ylabel="per cent", title="mean gain in perplexity of each step")
    left.legend(fontsize="x-small", ncols=2)
    for axis in (left, right):
        _logarithmic(axis, contexts)
    caption = "Loss by context length, and what each longer context gains, with its interval; dotted: 1 %."
    return Picture(name, caption, figure)


def _paper_gains(results: Results, name: str) -> Picture:
    contexts = results["contexts"]
    figure, axes = canvas(1, len(results["groups"]), width=12, height=3.8)
    for axis, (label, group) in zip(axes, results["groups"].items(), strict=True):
        for model, gains in group["gains"].items():
            axis.plot(contexts[1:], [100 * gain for gain in gains], label=model, **_style(results, model))
        axis.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axis.set(xlabel="tokens of context", ylabel="per cent", title=f"gain as published, {label}")
        axis.legend(fontsize="x-small")
        _logarithmic(axis, contexts)
    caption = (
        f"The published gain of each step at r = {results['shares'][0]:g}, against the best model of the group. "
        "What a control gains beyond its own tokens is noise."
    )
    return Picture(name, caption, figure)


def _style(results: Results, name: str) -> dict[str, Any]:
    """A colour for each model, and dashes for each control."""
    if name in results["controls"]:
        dashes = ("--", "-.", (0, (4, 1, 1, 1, 1, 1)), ":")[list(results["controls"]).index(name) % 4]
        return {"color": INK, "linewidth": 1, "linestyle": dashes}
    colours = (*COLOURS, INK)
    return {"color": colours[list(results["models"]).index(name) % len(colours)], "marker": "o", "ms": 3}


def _logarithmic(axis: Any, contexts: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    ticks = contexts[::2]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
