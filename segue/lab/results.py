"""Our figures in the published tables: small models on a small machine, marked as such, beside what was published.

Nothing is trained here. Figures come from the records of the other experiments in the output, and from runs that are
given; a published row whose data is not at hand stays as it was published, marked as not run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from segue.checkpoint import COUNTERS, Bundle, checkpoints, load, read_json
from segue.errors import InputError
from segue.infer.evaluate import evaluate
from segue.lab.ablation import bits, name_of
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, experiment
from segue.lab.published import published, source
from segue.lab.record import Record, read_record, strange
from segue.lab.spread import mean
from segue.lab.trained import training_seconds
from segue.recipe import Recipe, read_recipe, recipe_of
from segue.text.corpus import open_corpus

SCORED = {True: 20_000, False: 200_000}
"""Tokens of the test split that a given run is scored on, quick or not."""


def measure(setting: Setting) -> Results:
    ours, split = [], setting.corpus.header.splits["train"]
    for name, rows in (("ablation", _from_ablation), ("recl", _from_recl), ("adaptation", _from_adaptation)):
        record = read_record(setting.output, name)
        if record is not None and not strange(record, experiment(name)):  # of another version: another shape
            ours += [_told(record, row, split.bytes / split.tokens) for row in rows(record.results)]
    for number, run in enumerate(setting.runs):
        setting.report("given runs", number, len(setting.runs))
        ours.append(_from_run(setting, run))
    return {"ours": ours}


def _told(record: Record, row: Results, bytes_per_token: float) -> Results:
    """A row of an experiment with what all rows have beside their score."""
    tokens, seconds = row.pop("tokens"), row.pop("seconds")
    return {
        **row,
        "data": record.setting["data"]["source"],
        "word perplexity": None,
        "training bytes": None if tokens is None else tokens * bytes_per_token,
        "cpu hours": None if seconds is None else seconds * record.machine["threads"] / 3600,
        "from": record.experiment,
        "quick": record.setting["quick"],
    }


def _from_ablation(results: Results) -> Iterator[Results]:
    """The best with recurrence, and the best without."""
    size = results["budget"]
    for recurrent in (True, False):
        rows = [row for row in results["rows"] if row["recurrence"] == recurrent]
        best = min(rows, key=lambda row: mean(bits(row)))
        yield {
            "model": f"{name_of(best)}; {size['layers']} layers × {size['width']}",
            "bits per byte": mean(bits(best)),
            "parameters": best["parameters"],
            "tokens": size["tokens"],
            "seconds": mean([one["seconds"] for one in best["seeds"]]),
            "scored tokens": results["scored"],
        }


def _from_recl(results: Results) -> Iterator[Results]:
    """One row for each kind of model of one size."""
    for name, kind in results["kinds"].items():
        yield {
            "model": name,
            "bits per byte": mean([one["bits"][name] for one in results["seeds"]]),
            "parameters": kind["parameters"],
            "tokens": results["tokens"],
            "seconds": mean([one["seconds"][name] for one in results["seeds"]]),
            "scored tokens": results["scored"],
        }


def _from_adaptation(results: Results) -> Iterator[Results]:
    """One row for each model and way to adapt."""
    for name, seeds in results["models"].items():
        for way in seeds[0]:
            yield {
                "model": f"{name}, {way}",
                "bits per byte": mean([one[way]["bits"] for one in seeds]),
                "parameters": None,
                "tokens": None,
                "seconds": None,
                "scored tokens": results["scored"],
            }


def _from_run(setting: Setting, run: Path) -> Results:
    bundle, told = load(run), read_json(run / "run.json")
    recipe, corpus = recipe_of(read_recipe(run / "recipe.toml")), open_corpus(told["data"])
    if not isinstance(recipe, Recipe):
        raise InputError(f"{run} is a translator; its BLEU is told by segue translate --reference")
    score = evaluate(
        bundle.model,
        corpus.stream("test"),
        bundle.reading,
        limit=SCORED[setting.quick],
        report=lambda _task, done, total: setting.report(f"reading with {run.name}", done, total),
    )
    split, train = corpus.header.splits["train"], recipe.train
    steps = read_json(checkpoints(run)[-1] / COUNTERS)["step"]
    return {
        "model": f"{run.name}: {_shape(bundle)}",
        "data": corpus.header.source,
        "bits per byte": None if score.bytes is None else score.bits_per_byte,
        "word perplexity": score.word_perplexity,
        "parameters": sum(weight.numel() for weight in bundle.model.parameters()),
        "training bytes": steps * train.lanes * train.segment * split.bytes / split.tokens,
        "cpu hours": training_seconds(run) * told["threads"] / 3600,
        "scored tokens": score.tokens,
        "from": run.name,
        "quick": setting.quick,
    }


def _shape(bundle: Bundle) -> str:
    config: Any = bundle.model.config
    kind = "Transformer-XL" if config.kind == "xl" else str(getattr(config, "cell", config.kind)).upper()
    return f"{kind}, {config.layers} layers × {config.width}"


def tell(results: Results) -> list[Block]:
    known = [table["data"] for table in published("results")]
    here = {row["data"] for row in results["ours"]}
    blocks: list[Block] = [
        "The published tables, with ours in them where the data is the same. Ours are small models, trained "
        "for minutes on a few cores: they show where such a machine stands, not what the architecture can do. "
        f"{len(known)} sets are shown, {len(here.intersection(known))} of them with figures of ours: "
        f"{', '.join(known)}. Rows marked “published” were not run here; for a figure of your own, train a "
        "preset and give its run: segue lab results --run RUN.",
    ]
    others = sorted(here - set(known))
    blocks += [
        Table(
            ["model", "bits per byte", *_beside_head()],
            [[row["model"], _bits(row), *_beside(row)] for row in results["ours"] if row["data"] == data],
            f"{data}: nothing was published for it; ours, measured here, at small scale.",
        )
        for data in others
    ]
    return blocks + [_table(table, results["ours"]) for table in published("results")]


def _bits(row: Results) -> str:
    return "–" if row["bits per byte"] is None else f"{row['bits per byte']:.3f}"


def _table(table: Results, ours: list[Results]) -> Table:
    here = [row for row in ours if row["data"] == table["data"] and _score(row, table["unit"]) is not None]
    rows = [
        [
            row["model"],
            _published(row["score"], table["unit"]),
            "published, not run",
            row.get("parameters", "–"),
            "–",
            "–",
            "–",
        ]
        for row in table["rows"]
    ]
    rows += [[row["model"], f"{_score(row, table['unit']):.3f}", *_beside(row)] for row in here]
    sources = sorted({row.get("source", table["source"]) for row in table["rows"]}, reverse=True)
    reach = (
        "ours beside them, at small scale" if here else "none of them was run: nothing here was trained on it"
    )
    return Table(
        ["model", table["unit"], *_beside_head()],
        rows,
        f"{table['data']}, {table['unit']}; {reach}. Published: {'; '.join(source(key) for key in sources)}.",
    )


def _published(score: float, unit: str) -> str:
    """With the digits that were published."""
    if unit != "bits per character":
        return f"{score:.1f}"
    return f"{score:.2f}" if round(score, 2) == score else f"{score:.3f}"


def _score(row: Results, unit: str) -> float | None:
    """Ours in the unit of a table. A byte of enwik8 or text8 is what they call a character."""
    value = {"bits per character": row["bits per byte"], "perplexity": row["word perplexity"]}.get(unit)
    return None if value is None else float(value)


def _beside_head() -> list[str]:
    return ["status", "parameters", "training bytes", "CPU hours", "scored tokens"]


def _beside(row: Results) -> list[str]:
    figures = {"parameters": ",", "training bytes": ",.0f", "cpu hours": ".3f", "scored tokens": ","}
    return [
        f"ours, small scale ({row['from']})",
        *("–" if row[name] is None else format(row[name], form) for name, form in figures.items()),
    ]


def draw(_results: Results) -> list[Picture]:
    return []


EXPERIMENT = Experiment(
    name="results",
    claim="Transformer-XL set the best figures of its time in language modelling.",
    measure=measure,
    tell=tell,
    draw=draw,
    lasting=False,
)
