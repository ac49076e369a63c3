"""Ablation of recurrence × positional encoding × loss: the nine rows of the published table, with an equal budget.

Each model is evaluated in every mode that it allows: with memories of several lengths if its positions are relative,
and with a sliding window if it was trained on isolated segments. The validation split decides which mode is best.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from segue.checkpoint import Bundle, load
from segue.config import XLConfig
from segue.footprint import parameters
from segue.lab.cache import cached
from segue.lab.drawing import COLOURS, canvas
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.published import published, source
from segue.lab.statistics import concordant_pairs, fewer_bits, half_range, mean, plus_minus, seed_count
from segue.lab.trained import (
    EvaluationMode,
    as_trained,
    budget,
    recipe_for,
    score,
    scored_tokens,
    sliding_window,
    trained_run,
    training_seconds,
    with_memory,
)
from segue.lab.tuning import tuned

LOSSES = {"full": "whole", "half": "half"}
"""The published table's names of losses, and ours."""

MEMORIES, QUICK_MEMORIES = (1, 2, 4, 8, 16), (1, 4)
"""Memory lengths in segments, each with and without a clamp."""


def measure(setting: Setting) -> Results:
    size = budget(setting)
    return {
        "rows": [_row(setting, row) for row in published("ablation")["rows"]],
        "budget": {**vars(size), "tokens": size.tokens},
        "scored": scored_tokens(setting),
    }


def _row(setting: Setting, row: Results) -> Results:
    memory = budget(setting).segment if row["recurrence"] else 0
    label, loss, seeds = name_of(row), LOSSES[row["loss"]], []
    recipe = recipe_for(setting, seed=setting.seed, encoding=row["encoding"], memory=memory, loss=loss)
    best_settings = tuned(setting, recipe, label)
    for seed in setting.seeds:
        run = trained_run(setting, best_settings.seeded(seed), f"{label}, seed {seed}")
        inputs = {"run": run.name, "scored": scored_tokens(setting)}
        seeds.append({"seed": seed, **cached(setting, __name__, inputs, partial(_read, setting, row, run))})
    named = {key: row[key] for key in ("recurrence", "encoding", "loss")}
    return {**named, "parameters": parameters(recipe.model), **best_settings.summary(), "seeds": seeds}


def _read(setting: Setting, row: Results, run: Path) -> Results:
    """Bits per byte of a trained model, read as in training and in its best mode."""
    bundle, label = load(run), name_of(row)
    memories = QUICK_MEMORIES if setting.quick else MEMORIES
    modes = list(_modes(bundle, memories, recurrent=row["recurrence"]))
    losses = [score(setting, bundle, mode, split="valid", label=label).nats for mode in modes]
    best = modes[losses.index(min(losses))]
    return {
        "initial": score(setting, bundle, label=label).bits_per_byte,
        "best": score(setting, bundle, best, label=label).bits_per_byte,
        "way": best.name,
        "attention": best.attention,
        "seconds": training_seconds(run),
    }


def _modes(bundle: Bundle, memories: Sequence[int], *, recurrent: bool) -> Iterator[EvaluationMode]:
    """As in training, and in all other modes that its positions allow."""
    yield as_trained(bundle)
    if not recurrent:
        yield sliding_window(bundle)
    assert isinstance(bundle.model.config, XLConfig)
    if bundle.model.config.position_encoding.relative:
        lengths = [times * bundle.reading.segment for times in memories]
        longest = bundle.reading.segment + bundle.reading.reach.memory - 1  # distance in training
        yield from (with_memory(bundle, length) for length in lengths)
        yield from (with_memory(bundle, length, clamp=longest) for length in lengths if length > longest)


def name_of(row: Results) -> str:
    return f"{'recurrence' if row['recurrence'] else 'no recurrence'}, {row['encoding']}, {row['loss']} loss"


def bits(row: Results) -> list[float]:
    """Bits per byte in the best mode, for each seed."""
    return [one["best"] for one in row["seeds"]]


COMPARED = (
    (
        "Segment recurrence in training helps, if every model is read in its best mode",
        (True, "xl", "full"),
        (False, "xl", "full"),
    ),
    (
        "With recurrence, Transformer-XL's positional encoding is better than Shaw's",
        (True, "xl", "full"),
        (True, "shaw", "full"),
    ),
    (
        "With recurrence, a loss on the whole segment is better than one on its second half",
        (True, "xl", "full"),
        (True, "xl", "half"),
    ),
    (
        "Without recurrence, relative positions are better than absolute sinusoids",
        (False, "xl", "half"),
        (False, "sinusoidal", "half"),
    ),
    (
        "Without recurrence, relative positions are better than Al-Rfou's",
        (False, "xl", "half"),
        (False, "per-layer", "half"),
    ),
)


def tell(results: Results) -> list[Block]:
    rows, size, theirs = results["rows"], results["budget"], published("ablation")
    by_name = {_kind(row): bits(row) for row in rows}
    verdicts = [_verdict(f"{claim}.", by_name[left], by_name[right]) for claim, left, right in COMPARED]
    with_memory, without = (
        [one["initial"] for row in rows if _kind(row) == (recurrent, "xl", "full") for one in row["seeds"]]
        for recurrent in (True, False)
    )
    verdicts[:0] = [
        _verdict("Segment recurrence helps, if models are read as they were trained.", with_memory, without)
    ]
    ours, published_order = [mean(bits(row)) for row in rows], [row["best"] for row in theirs["rows"]]
    same, pairs = concordant_pairs(ours, published_order)
    first = min(range(len(ours)), key=ours.__getitem__)
    return [
        "Transformer-XL changed three things at once: it carries a memory from segment to segment (recurrence), its "
        "positional encoding is relative (xl), and its loss is on every token of a segment, not only on the second "
        "half. The published table removes them one by one. Here are the same nine models at small scale, "
        f"each with the same shape and the same {size['tokens']:,} training tokens, {_tuning(rows)}; each is evaluated "
        "in the best mode that it allows, chosen on the validation split.",
        *verdicts,
        Verdict(
            "The nine rows are in the published order.",
            same == pairs,
            f"{same} of {pairs} pairs of rows are in the same order; the lowest here is “{name_of(rows[first])}”",
            size=f"{same} of {pairs} pairs of rows",
            sure=seed_count(bits(rows[0])),
        ),
        Table(
            [
                "model",
                "bits per byte",
                "as trained",
                "best mode",
                "optimizer, learning rate",
                f"published {theirs['unit']}",
                "parameters",
            ],
            [_line(row, other) for row, other in zip(rows, theirs["rows"], strict=True)],
            f"Ours on the first {results['scored']:,} test tokens, mean ± half the range of seeds; published: "
            f"{theirs['data']} ({source(theirs['source'])}).",
        ),
    ]


def _kind(row: Results) -> tuple[bool, str, str]:
    return row["recurrence"], row["encoding"], row["loss"]


def _tuning(rows: Sequence[Results]) -> str:
    tries = len(rows[0]["tries"])
    return (
        f"each with the best of {tries} optimizer settings"
        if tries
        else "with one optimizer and learning rate for all"
    )


def _verdict(claim: str, left: Sequence[float], right: Sequence[float]) -> Verdict:
    saved = mean(right) - mean(left)
    change = f"{abs(saved):.3f} {'saved' if saved > 0 else 'lost'}"
    because = f"{plus_minus(left)} against {plus_minus(right)} bits per byte, {change}; {seed_count(left)}"
    size, sure = f"{-saved:+.3f} bits per byte", seed_count(left)
    return Verdict(claim, fewer_bits(left, right), because, size, sure)


def _line(row: Results, theirs: Results) -> list[str]:
    modes = sorted({f"{one['way']} ({one['attention']} keys)" for one in row["seeds"]})
    far = f" @ {theirs['attention']}" if theirs["attention"] else ""
    initial = plus_minus([one["initial"] for one in row["seeds"]])
    return [
        name_of(row),
        plus_minus(bits(row)),
        initial,
        ", ".join(modes),
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
        "The nine rows: ours in bits per byte with the range over seeds, the published ones in perplexity."
    )
    return [Picture("ablation", f"{caption} Lower is better.", figure)]


EXPERIMENT = Experiment(
    name="ablation",
    claim="Segment recurrence, relative positions and a loss on the whole segment each make the model better.",
    measure=measure,
    tell=tell,
    draw=draw,
)
