"""The page of `terms`: what each term of attention scores is worth, in verdicts, tables and a picture."""

from collections.abc import Sequence

from segue.lab.drawing import canvas
from segue.lab.experiment import Block, Picture, Results, Table, Verdict
from segue.lab.statistics import fewer_bits, mean, plus_minus, seed_count, signed_plus_minus

TERMS = "abcd"
NAMES = {
    "xl": {"a": "(a) q·k", "b": "(b) q·r", "c": "(c) u·k", "d": "(d) v·r"},
    "absolute": {"a": "x·x", "b": "x·p", "c": "p·x", "d": "p·p"},
}
"""The terms of both kinds of attention, in the order of the papers."""

OWNERS = {"xl": "Transformer-XL's", "absolute": "Absolute attention's"}


def tell(results: Results) -> list[Block]:
    sides = results["sides"]
    return [
        "The score of a query and a key is a sum of four terms. What is each of them worth? A model is trained with "
        f"all of them, without each, and with each alone, on {results['tokens']:,} tokens; in the full version every "
        "variant first tries the same two learning rates. Transformer-XL's terms are those of relative attention with "
        "memory; absolute positions restart in isolated segments, and are added in every layer for queries and keys "
        "alone, so that their terms can be taken apart.",
        *(_verdict(side, name, one) for name, side in sides.items() for one in TERMS),
        *(_places_verdict(side, name) for name, side in sides.items()),
        *(_table(side, name) for name, side in sides.items()),
    ]


def _verdict(side: Results, name: str, term: str) -> Verdict:
    complete, without = side[TERMS]["bits"], side[TERMS.replace(term, "")]["bits"]
    return Verdict(
        f"{OWNERS[name]} term {NAMES[name][term]} is worth having.",
        fewer_bits(complete, without),
        f"{plus_minus(complete)} bits with all terms, {plus_minus(without)} without it; {seed_count(complete)}",
    )


def _places_verdict(side: Results, name: str) -> Verdict:
    """The term of places alone, (d), against the term of content alone, (a)."""
    places, content = side["d"]["bits"], side["a"]["bits"]
    return Verdict(
        f"{OWNERS[name]} term of places alone is worth more than its term of content alone.",
        fewer_bits(places, content),
        f"{plus_minus(places)} bits with {NAMES[name]['d']} alone, {plus_minus(content)} with {NAMES[name]['a']} "
        f"alone; {seed_count(places)}",
    )


def _label(name: str, kept: str) -> str:
    if kept == TERMS:
        return "all terms"
    missing = [one for one in TERMS if one not in kept]
    return f"without {NAMES[name][missing[0]]}" if len(missing) == 1 else f"{NAMES[name][kept]} alone"


def _table(side: Results, name: str) -> Table:
    complete = side[TERMS]["bits"]
    rows = [
        [
            _label(name, kept),
            plus_minus(variant["bits"]),
            signed_plus_minus(
                [one - all_terms for one, all_terms in zip(variant["bits"], complete, strict=True)]
            ),
            f"{variant['learning_rate']:g}",
        ]
        for kept, variant in side.items()
    ]
    return Table(
        ["terms", "bits per token", "difference", "learning rate"],
        rows,
        f"{'Transformer-XL' if name == 'xl' else 'Absolute positions'}: test text, mean ± half the range of seeds.",
    )


def draw(results: Results) -> list[Picture]:
    sides = results["sides"]
    figure, axes = canvas(1, len(sides), width=5 * len(sides), height=4)
    for axis, (name, side) in zip(axes, sides.items(), strict=True):
        labels = [_label(name, kept) for kept in side]
        values: Sequence[float] = [mean(variant["bits"]) for variant in side.values()]
        axis.barh(labels[::-1], values[::-1], color=["#4878a8"] * (len(labels) - 1) + ["#2f9e44"])
        axis.set(
            xlabel="bits per token",
            xlim=(0.95 * min(values), 1.02 * max(values)),
            title="Transformer-XL" if name == "xl" else "absolute positions",
        )
    return [Picture("terms", "Bits per token with some of the terms; lower is better.", figure)]
