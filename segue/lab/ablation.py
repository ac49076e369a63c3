"""Recurrence × encoding × loss: the nine rows of the published table, with small models and an equal budget.

Each model is read in every way that it allows: with memories of several lengths if its positions are relative, and
anew for every token if it was trained on isolated segments. Which way is best is decided on the validation split.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from segue.checkpoint import Bundle, load
from segue.config import XLConfig
from segue.lab.drawing import COLOURS, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.kept import kept
from segue.lab.published import published, source
from segue.lab.spread import fewer_bits, half_range, mean, pairs_in_order, said, with_seeds
from segue.lab.trained import (
    Way,
    as_trained,
    budget,
    recipe_for,
    remembering,
    score,
    scored_tokens,
    sliding,
    trained_run,
    training_seconds,
)
from segue.lab.tuning import tuned
from segue.nn.footprint import parameters

LOSSES = {"full": "whole", "half": "half"}
"""The table's words and ours."""

MEMORIES = (1, 2, 4)
"""In segments."""


def measure(setting: Setting) -> Results:
    size = budget(setting)
    return {
        "rows": [_row(setting, row) for row in published("ablation")["rows"]],
        "budget": {**vars(size), "tokens": size.tokens},
        "scored": scored_tokens(setting),
    }


def _row(setting: Setting, row: Results) -> Results:
    memory = budget(setting).segment if row["recurrence"] else 0
    told, loss, found = name_of(row), LOSSES[row["loss"]], []
    recipe = recipe_for(setting, seed=setting.seed, encoding=row["encoding"], memory=memory, loss=loss)
    best_settings = tuned(setting, recipe, told)
    for seed in setting.seeds:
        run = trained_run(setting, best_settings.seeded(seed), f"{told}, seed {seed}")
        of = {"run": run.name, "scored": scored_tokens(setting)}
        found.append({"seed": seed, **kept(setting, __name__, of, partial(_read, setting, row, run))})
    named = {key: row[key] for key in ("recurrence", "encoding", "loss")}
    return {**named, "parameters": parameters(recipe.model), **best_settings.told(), "seeds": found}


def _read(setting: Setting, row: Results, run: Path) -> Results:
    """What a trained model reaches, as it was trained to read and in its best way."""
    bundle, told = load(run), name_of(row)
    ways = list(_ways(bundle, recurrent=row["recurrence"]))
    by_validation = [score(setting, bundle, way, split="valid", told=told).nats for way in ways]
    best = ways[by_validation.index(min(by_validation))]
    return {
        "initial": score(setting, bundle, told=told).bits_per_byte,
        "best": score(setting, bundle, best, told=told).bits_per_byte,
        "way": best.name,
        "attention": best.attention,
        "seconds": training_seconds(run),
    }


def _ways(bundle: Bundle, *, recurrent: bool) -> Iterator[Way]:
    """As it was trained, and all else that its positions allow."""
    yield as_trained(bundle)
    if not recurrent:
        yield sliding(bundle)
    assert isinstance(bundle.model.config, XLConfig)
    if bundle.model.config.position_encoding.relative:
        yield from (remembering(bundle, times * bundle.reading.segment) for times in MEMORIES)


def name_of(row: Results) -> str:
    return f"{'recurrence' if row['recurrence'] else 'no recurrence'}, {row['encoding']}, {row['loss']} loss"


def bits(row: Results) -> list[float]:
    """Of the best way to read, for each seed."""
    return [one["best"] for one in row["seeds"]]


COMPARED = (
    ("Recurrence helps", (True, "xl", "full"), (False, "xl", "full")),
    (
        "With recurrence, the positions of Transformer-XL beat Shaw's",
        (True, "xl", "full"),
        (True, "shaw", "full"),
    ),
    (
        "With recurrence, a loss on the whole segment beats one on its half",
        (True, "xl", "full"),
        (True, "xl", "half"),
    ),
    (
        "Without recurrence, relative positions beat sinusoids",
        (False, "xl", "half"),
        (False, "sinusoidal", "half"),
    ),
    (
        "Without recurrence, relative positions beat Al-Rfou's",
        (False, "xl", "half"),
        (False, "per-layer", "half"),
    ),
)


def tell(results: Results) -> list[Block]:
    rows, size, theirs = results["rows"], results["budget"], published("ablation")
    by_name = {(row["recurrence"], row["encoding"], row["loss"]): bits(row) for row in rows}
    verdicts = [_verdict(f"{claim}.", by_name[left], by_name[right]) for claim, left, right in COMPARED]
    ours, published_order = [mean(bits(row)) for row in rows], [row["best"] for row in theirs["rows"]]
    same, pairs = pairs_in_order(ours, published_order)
    first = min(range(len(ours)), key=ours.__getitem__)
    return [
        "Transformer-XL changed three things at once: it carries a memory over the seam between segments "
        "(recurrence), it tells positions by distance (xl), and it learns from every token of a segment, not from "
        "its second half only. The published table takes them away one by one. Here are the same nine models, small, "
        f"each with the same shape and the same {size['tokens']:,} training tokens, {_tuning(rows)}; each read in the "
        "best way that it allows, chosen on validation text.",
        *verdicts,
        Verdict(
            "The nine rows stand in the published order.",
            same == pairs,
            f"{same} of {pairs} pairs of rows stand in the same order; the lowest here is “{name_of(rows[first])}”",
        ),
        Table(
            [
                "model",
                "bits per byte",
                "as trained",
                "read best by",
                "tuned to",
                f"published {theirs['unit']}",
                "parameters",
            ],
            [_line(row, other) for row, other in zip(rows, theirs["rows"], strict=True)],
            f"Ours on the first {results['scored']:,} test tokens, mean ± half the range of seeds; published: "
            f"{theirs['data']} ({source(theirs['source'])}).",
        ),
    ]


def _tuning(rows: Sequence[Results]) -> str:
    tries = len(rows[0]["tries"])
    return (
        f"each with the best of {tries} settings of the optimizer"
        if tries
        else "with one optimizer and rate for all"
    )


def _verdict(claim: str, left: Sequence[float], right: Sequence[float]) -> Verdict:
    saved = mean(right) - mean(left)
    change = f"{abs(saved):.3f} {'saved' if saved > 0 else 'lost'}"
    because = f"{said(left)} against {said(right)} bits per byte, {change}; {with_seeds(left)}"
    return Verdict(claim, fewer_bits(left, right), because)


def _line(row: Results, theirs: Results) -> list[str]:
    ways = sorted({f"{one['way']} ({one['attention']} keys)" for one in row["seeds"]})
    far = f" @ {theirs['attention']}" if theirs["attention"] else ""
    initial = said([one["initial"] for one in row["seeds"]])
    return [
        name_of(row),
        said(bits(row)),
        initial,
        ", ".join(ways),
        f"{row['optimizer']}, {row['learning_rate']:g}",
        f"{theirs['best']:.2f}{far}",
        f"{row['parameters']:,}",
    ]


def draw(results: Results) -> list[Picture]:
    rows, theirs = results["rows"], published("ablation")["rows"]
    figure, (left, right) = canvas(1, 2, width=10.5, height=3.8)
    places = list(range(len(rows)))[::-1]
    values = [bits(row) for row in rows]
    style: dict[str, Any] = {"fmt": "o", "capsize": 3}
    left.errorbar(
        [mean(one) for one in values],
        places,
        xerr=[half_range(one) for one in values],
        color=COLOURS[0],
        **style,
    )
    for place, one in zip(places, values, strict=True):
        left.plot(one, [place] * len(one), ".", color=COLOURS[0], alpha=0.4)
    left.set(title="ours", xlabel="bits per byte", yticks=places, yticklabels=[name_of(row) for row in rows])
    right.plot([row["best"] for row in theirs], places, "o", color=COLOURS[1])
    right.set(title="published", xlabel="perplexity", yticks=places, yticklabels=[])
    caption = (
        "The nine rows: ours in bits per byte with the range of seeds, the published ones in perplexity."
    )
    return [Picture("ablation", f"{caption} Lower is better.", figure)]


EXPERIMENT = Experiment(
    name="ablation",
    claim="Each of recurrence, relative positions and a loss on the whole segment makes the model better.",
    measure=measure,
    tell=tell,
    draw=draw,
)
