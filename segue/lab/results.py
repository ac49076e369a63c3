"""Our results in the published tables: small models on a small machine, marked as such, with the published rows.

Nothing is trained here. Our figures come from the records of the other experiments in the output, and from given runs;
published rows are marked as not run here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from segue.checkpoint import COUNTERS, Bundle, checkpoints, load, read_json, task_of
from segue.errors import InputError
from segue.infer.evaluate import evaluate
from segue.lab.ablation import bits, name_of
from segue.lab.adaptation import CONTROLS
from segue.lab.compressors import measured_compressors
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, experiment
from segue.lab.published import published, source
from segue.lab.record import Record, read_object, read_record, version_mismatch
from segue.lab.run_memory import draw_memories, memory_of_run, tell_memories
from segue.lab.statistics import mean
from segue.lab.trained import named, training_seconds
from segue.lab.words_page import small_figures
from segue.recipe import Recipe, read_recipe, recipe_of
from segue.text.corpus import Corpus, open_corpus

SCORED = {True: 20_000, False: 200_000}
"""The number of test tokens that a given run is scored on, quick or not."""


class Given(NamedTuple):
    """A run of `segue train` that is to be measured."""

    name: str
    path: Path
    bundle: Bundle
    recipe: Recipe
    corpus: Corpus
    core_hours: float


def measure(setting: Setting) -> Results:
    models = {} if setting.models is None else models_figures(setting.models)
    given = given_runs(setting.runs)  # before anything is measured: what cannot be read is found at once
    ours = []
    for name, rows in (("ablation", _from_ablation), ("recl", _from_recl), ("adaptation", _from_adaptation)):
        record = read_record(setting.output, name)
        if record is not None and not version_mismatch(
            record, experiment(name)
        ):  # another version may have another shape
            ours += [_with_facts(record, row, setting) for row in rows(record.results)]
    memories = []
    for number, run in enumerate(given):
        setting.report("given runs", number, len(given))
        row, sweep = _from_run(setting, run)
        ours.append(row)
        memories += [sweep] if sweep else []
    return {
        "ours": ours,
        "memories": memories,
        "compressors": measured_compressors(setting),
        "words": _from_words(setting.output),
        "models": models,
    }


def models_figures(path: Path) -> Results:
    """The figures of `make models`: data, tokens, and for each model bits per byte of validation and test."""
    values = read_object(path, "give figures of `make models`")
    try:
        rows = {
            name: {
                "valid": mean([_positive(one) for one in row["valid"]]),
                "test": mean([_positive(one) for one in row["test"]]),
                "parameters": int(_positive(row["parameters"])),
            }
            for name, row in values["rows"].items()
        }
        return {"data": str(values["data"]), "tokens": int(_positive(values["tokens"])), "rows": rows}
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise InputError(
            f"{path} holds no finished rows of `make models`; let it finish a model, or leave out --models"
        ) from None


def _positive(value: float | int) -> float:
    if not isinstance(value, int | float) or value <= 0:
        raise ValueError("a figure is a positive number")
    return float(value)


def _with_facts(record: Record, row: Results, setting: Setting) -> Results:
    """A row of an experiment with the columns that all rows have; bytes only of tokens of the same corpus."""
    tokens, seconds = row.pop("tokens"), row.pop("seconds")
    header = setting.corpus.header
    split, same = header.splits["train"], record.setting["data"]["checksums"] == header.checksums
    return {
        **row,
        "data": record.setting["data"]["source"],
        "word perplexity": None,
        "valid": None,
        "training bytes": tokens * split.bytes / split.tokens if same and tokens is not None else None,
        "cpu hours": None if seconds is None else seconds * record.machine["threads"] / 3600,
        "from": record.experiment,
        "quick": record.setting["quick"],
    }


def _from_ablation(results: Results) -> Iterator[Results]:
    """The best model with segment recurrence, and the best without."""
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
    """One row for each architecture."""
    for name, facts in results["models"].items():
        yield {
            "model": name,
            "bits per byte": facts["score"],
            "parameters": facts["parameters"],
            "tokens": results["tokens"],
            "seconds": facts["seconds"],
            "scored tokens": results["scored"],
        }


def _from_adaptation(results: Results) -> Iterator[Results]:
    """One row for each model and adaptation."""
    for name, seeds in results["models"].items():
        for mode in (one for one in seeds[0] if one not in CONTROLS.values()):
            yield {
                "model": f"{name}, {mode}",
                "bits per byte": mean([one[mode]["bits"] for one in seeds]),
                "parameters": None,
                "tokens": None,
                "seconds": None,
                "scored tokens": results["scored"],
            }


def _from_words(output: Path) -> Results:
    """The figures of `words`: its data, and mean perplexities of validation and test by the names of rows."""
    record = read_record(output, "words")
    if record is None or version_mismatch(record, experiment("words")):
        return {}
    return {"data": record.results["source"], "rows": small_figures(record.results)}


def given_runs(paths: Sequence[Path]) -> list[Given]:
    """The runs of language models; an encoder's run is for `heads`."""
    return [_given(path, name) for name, path in named(paths).items() if task_of(path) != "encoding"]


def _given(path: Path, name: str) -> Given:
    bundle, facts = load(path), read_json(path / "run.json")
    recipe, corpus = recipe_of(read_recipe(path / "recipe.toml")), open_corpus(facts["data"])
    if not isinstance(recipe, Recipe):
        raise InputError(f"{path} is a translator; for its BLEU run: segue translate --reference")
    return Given(name, path, bundle, recipe, corpus, training_seconds(path) * facts["threads"] / 3600)


def _from_run(setting: Setting, run: Given) -> tuple[Results, Results]:
    """The row of a run, and how it is read with longer memories."""
    valid, score = (
        evaluate(
            run.bundle.model,
            run.corpus.stream(name),
            run.bundle.reading,
            limit=SCORED[setting.quick],
            report=lambda _task, done, total: setting.report(f"reading with {run.name}", done, total),
        )
        for name in ("valid", "test")
    )
    split, train = run.corpus.header.splits["train"], run.recipe.train
    steps = read_json(checkpoints(run.path)[-1] / COUNTERS)["step"]
    row = {
        "model": f"{run.name}: {_shape(run.bundle)}",
        "data": run.corpus.header.source,
        "bits per byte": None if score.bytes is None else score.bits_per_byte,
        "word perplexity": score.word_perplexity,
        "valid": valid.word_perplexity if score.bytes is None else valid.bits_per_byte,
        "parameters": sum(weight.numel() for weight in run.bundle.model.parameters()),
        "training bytes": steps * train.lanes * train.segment * split.bytes / split.tokens,
        "cpu hours": run.core_hours,
        "scored tokens": score.tokens,
        "from": run.name,
        "quick": setting.quick,
    }
    return row, memory_of_run(setting, run.name, run.bundle, train, run.corpus)


def _shape(bundle: Bundle) -> str:
    config: Any = bundle.model.config
    kind = "Transformer-XL" if config.kind == "xl" else str(getattr(config, "cell", config.kind)).upper()
    return f"{kind}, {config.layers} layers × {config.width}"


def tell(results: Results) -> list[Block]:
    known = [table["data"] for table in published("results")]
    here = {row["data"] for row in results["ours"]}
    blocks: list[Block] = [
        "The published tables, with our results where the data set is the same. Ours are small models, trained "
        "for minutes on a few cores: they show what such a machine reaches, not what the architecture can do. "
        f"{len(known)} data sets are shown, {len(here.intersection(known))} of them with our results: "
        f"{', '.join(known)}. Rows marked “published” were not run here; to add your own, train a "
        "preset and pass its run: segue lab results --run RUN. Core hours are wall-clock time times threads, on "
        "machines that may have been busy; scored tokens are bytes or pieces, whatever the row's model reads. Of "
        "ablation there are two rows, the best with recurrence and the best without, by these figures themselves.",
        *tell_memories(results.get("memories", [])),
    ]
    others = sorted(here - set(known))
    blocks += [
        Table(
            ["model", "bits per byte", *_beside_head()],
            [[row["model"], _bits(row), *_beside(row)] for row in results["ours"] if row["data"] == data],
            f"{data}: no published results; ours were measured here at small scale.",
        )
        for data in others
    ]
    smaller = Smaller(results.get("models", {}), results.get("words", {}))  # older records have none
    blocks += [_table(table, results["ours"], smaller) for table in published("results")]
    return blocks + _compressor_blocks(results.get("compressors", []))


def _compressor_blocks(rows: list[Results]) -> list[Block]:
    if not rows:
        return []
    first = rows[0]
    blocks: list[Block] = [
        Table(
            ["compressor", "bits per byte, by itself", "bits per byte, behind training text", "status"],
            [
                [row["name"], f"{row['alone']:.3f}", f"{row['after training text']:.3f}", "measured here"]
                for row in rows
            ],
            f"{first['data']}: compressors on {first['bytes']:,} bytes of the test split, by themselves and behind the "
            f"last {first['context']:,} bytes of the training text. Compressors adapt as they read; models are trained "
            "before.",
        )
    ]
    if not any("zstd" in row["name"] for row in rows):
        blocks.append("zstd was not measured: its package was not installed (pip install zstandard).")
    return blocks


def _bits(row: Results) -> str:
    return "–" if row["bits per byte"] is None else f"{row['bits per byte']:.3f}"


class Smaller(NamedTuple):
    """Our small models of published architectures: of `make models`, and of `words`."""

    models: Results
    words: Results

    def model(self, row: Results) -> str:
        """Bits per byte, on whatever data it was trained."""
        known = self.models.get("rows", {}).get(row.get("ours"))
        return "–" if known is None else f"{known['test']:.3f} ({known['parameters'] / 1e6:.1f}M)"

    def word_model(self, row: Results) -> str:
        """Perplexity of a smaller set of words."""
        known = self.words.get("rows", {}).get(row.get("words"))
        return "–" if known is None else f"{known['test']:.1f} ({known['valid']:.1f})"

    def about(self, table: Results) -> str:
        """What the caption says of them."""
        said = ""
        if any(self.model(row) != "–" for row in table["rows"]):
            said += (
                f" The same model here: bits per byte of {self.models['data']} after {self.models['tokens']:,} tokens, "
                "not the published data or unit; compare down the column."
            )
        if self.has_words(table):
            said += (
                f" The same model on words: perplexity of {self.words['data']}, test and (validation), from `words`; "
                "less text and another vocabulary than published."
            )
        return said

    def has_words(self, table: Results) -> bool:
        return any(self.word_model(row) != "–" for row in table["rows"])


def _table(table: Results, ours: list[Results], smaller: Smaller) -> Table:
    here = [row for row in ours if row["data"] == table["data"] and _score(row, table["unit"]) is not None]
    worded = smaller.has_words(table)
    rows = [
        [
            row["model"],
            _published(row["score"], table["unit"]),
            _published(row["valid"], table["unit"]) if "valid" in row else "–",
            "published, not run",
            smaller.model(row),
            *([smaller.word_model(row)] if worded else []),
            row.get("parameters", "–"),
            "–",
            "–",
            "–",
        ]
        for row in table["rows"]
    ]
    for row in here:
        status, *facts = _beside(row)
        scores = [
            f"{_score(row, table['unit']):.3f}",
            "–" if row.get("valid") is None else f"{row['valid']:.3f}",
        ]
        rows.append([row["model"], *scores, status, "–", *(["–"] if worded else []), *facts])
    sources = sorted({row.get("source", table["source"]) for row in table["rows"]}, reverse=True)
    reach = "with ours at small scale" if here else "none was run here: nothing was trained on this data set"
    status, *facts = _beside_head()
    same = ["the same model on words"] if worded else []
    return Table(
        ["model", table["unit"], "validation", status, "the same model here", *same, *facts],
        rows,
        f"{table['data']}, {table['unit']}; {reach}. Published: {'; '.join(source(key) for key in sources)}."
        + smaller.about(table),
    )


def _published(score: float, unit: str) -> str:
    """A score with as many digits as were published."""
    if unit != "bits per character":
        return f"{score:.1f}"
    return f"{score:.2f}" if round(score, 2) == score else f"{score:.3f}"


def _score(row: Results, unit: str) -> float | None:
    """Our score in the unit of a table. Published bits per character of enwik8 and text8 are per byte."""
    value = {"bits per character": row["bits per byte"], "perplexity": row["word perplexity"]}.get(unit)
    return None if value is None else float(value)


def _beside_head() -> list[str]:
    return ["status", "parameters", "training bytes", "core hours", "scored tokens"]


def _beside(row: Results) -> list[str]:
    figures = {"parameters": ",", "training bytes": ",.0f", "cpu hours": ".3f", "scored tokens": ","}
    return [
        f"ours, small scale ({row['from']})",
        *("–" if row[name] is None else format(row[name], form) for name, form in figures.items()),
    ]


def draw(results: Results) -> list[Picture]:
    return draw_memories(results.get("memories", []))


EXPERIMENT = Experiment(
    name="results",
    claim="Transformer-XL reached the best results of its time in language modelling.",
    measure=measure,
    tell=tell,
    draw=draw,
    cacheable=False,
)
