"""Encoders fine-tuned for four tasks, beside simple baselines: polarity, similarity, entities, answers.

    make encoder DATA=tasks WEIGHTS=all-MiniLM-L6-v2              # about an hour on 2 cores
    make encoder DATA=tasks WEIGHTS=all-MiniLM-L6-v2 PRETRAINED=runs/bert-cpu
    make encoder DATA=tasks WEIGHTS=all-MiniLM-L6-v2 MORE="--only polarity --share 0.5"

DATA holds sentence-polarity/{train,valid,test}.tsv, stsb/{train,dev}.tsv, wnut17/{train,dev}.conll and
squad/{train,valid}.json, also as .xz. PRETRAINED is an encoder of one's own; beside it, one of the same shape and
vocabulary begins with fresh weights. Runs are resumed, and finished ones only evaluated. What is told is always the
last of a task's files, which training does not see; where there are two, a tenth of the first chooses the checkpoint.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import segue
from encoder_baselines import bag_of_words, frequent_tags, nearby_words, shared_words
from machine import environment
from segue.checkpoint import TextEncoder
from segue.cli.encoder_recipe import fitted_to_encoder, fitted_to_examples
from segue.cli.prepare_examples import Task, prepare_examples
from segue.files import write_atomically
from segue.infer.judge_examples import judge_examples
from segue.infer.metrics import pearson, spearman
from segue.launch import processor
from segue.nn.task_encoder import TaskEncoder
from segue.presets import preset
from segue.recipe import recipe_of, with_changes
from segue.text.examples import ExampleSet, open_examples
from segue.training.run import read_log

RESULTS = Path(__file__).parents[1] / "docs/results"


TIMES = ((1, ""), (5, "-x5"))
"""Of the presets' learning rates, which were chosen for MiniLM, and how runs with them are called. An encoder that was
pre-trained here tries both, as does the fresh one beside it; validation chooses."""


class TaskFiles(NamedTuple):
    """A task, its files (train, perhaps valid, test), its baseline and its figures."""

    task: str
    files: tuple[str, ...]
    baseline: str
    predict: Callable[[ExampleSet], dict[str, float]]
    figures: tuple[str, ...]


TASKS = {
    "polarity": TaskFiles(
        "classify",
        ("sentence-polarity/train.tsv", "sentence-polarity/valid.tsv", "sentence-polarity/test.tsv"),
        "bag of words, logistic regression",
        bag_of_words,
        ("accuracy", "macro_f1"),
    ),
    "similarity": TaskFiles(
        "pairs", ("stsb/train.tsv", "stsb/dev.tsv"), "shared words", shared_words, ("pearson", "spearman")
    ),
    "entities": TaskFiles(
        "tag",
        ("wnut17/train.conll", "wnut17/dev.conll"),
        "a word's most frequent tag",
        frequent_tags,
        ("entity_f1", "precision", "recall"),
    ),
    "answers": TaskFiles(
        "answer",
        ("squad/train.json", "squad/valid.json"),
        "most question words nearby",
        nearby_words,
        ("f1", "exact_match"),
    ),
}
TITLES = {
    "polarity": "Sentence polarity (test, 1,051 film reviews)",
    "similarity": "Similarity of sentences (STS-B dev, 1,500 pairs)",
    "entities": "Named entities (WNUT17 dev, 1,009 sentences)",
    "answers": "Questions and answers (a part of SQuAD 1.1, 1,306 questions)",
}


def prepared(name: str, data: Path, work: Path) -> ExampleSet:
    folder, about = work / "data" / name, TASKS[name]
    if not folder.exists():
        files = [
            file if file.exists() else file.with_name(f"{file.name}.xz")
            for file in map(data.joinpath, about.files)
        ]
        prepare_examples(
            files[0],
            task=Task(about.task),
            output=folder,
            valid=files[1] if len(files) > 2 else None,
            test=files[-1],
            score=name == "similarity",
        )
    return open_examples(folder)


def fine_tuned(
    name: str, encoder: TextEncoder, run: Path, data: ExampleSet, options: argparse.Namespace, times: int = 1
) -> Path:
    """Train, or go on with a run; with `times` the preset's learning rate."""

    def watch(event: Any) -> None:
        if event.kind == "valid":
            figures = ", ".join(f"{key} {value:.4f}" for key, value in event.values.items())
            print(f"{run.name}: step {event.step:,}, {figures}", flush=True)

    if run.exists():
        return segue.resume(run, watch=watch)
    values = preset(f"{TASKS[name].task}-cpu").recipe.model_dump(mode="json")
    values = fitted_to_examples(fitted_to_encoder(values, encoder), data.folder, from_nothing=False)
    steps = max(1, round(values["train"]["steps"] * options.share))
    every = max(1, steps // 3)
    changes = [f"train.steps={steps}", f"train.warmup={steps // 10}"]
    changes += [f"train.validate_every={every}", f"train.save_every={every}", f"train.seed={options.seed}"]
    changes += [f"train.learning_rate={times * values['train']['learning_rate']}"]
    return segue.train(
        recipe_of(with_changes(values, changes)), data.folder, run, begin_with=encoder, watch=watch
    )


def validated(name: str, run: Path) -> float:
    """The best figure that validation saw."""
    return max(event[TASKS[name].figures[0]] for event in read_log(run) if event["kind"] == "valid")


def measured(run: Path, data: ExampleSet) -> dict[str, Any]:
    """The figures of the test split, and what they cost."""
    encoder = segue.load_encoder(run)
    done = read_log(run)[-1]
    about = json.loads((run / "run.json").read_text())
    recipe = segue.recipe.read_recipe(run / "recipe.toml")
    return {
        **judge_examples(encoder, data.examples("test")).figures,
        "learning_rate": recipe["train"]["learning_rate"],
        "steps": done["step"],
        "minutes": round(done["seconds"] / 60, 1),
        "threads": about["threads"],
        "parameters": sum(weight.numel() for weight in encoder.model.parameters()),
    }


def cosines(encoder: TextEncoder, data: ExampleSet) -> dict[str, float]:
    """Similarity without training: the cosine of two vectors."""
    examples: list[Any] = data.examples("test")
    first, second = (encoder.embed([one.texts[side] for one in examples]) for side in (0, 1))
    ours = torch.nn.functional.cosine_similarity(first, second).tolist()
    theirs = [one.score for one in examples]
    return {"pearson": pearson(ours, theirs), "spearman": spearman(ours, theirs)}


def fresh(encoder: TextEncoder) -> TextEncoder:
    """The same shape and tokenizer, with fresh weights."""
    torch.manual_seed(0)
    return TextEncoder(TaskEncoder(encoder.model.config), encoder.tokenizer, encoder.reading)


def encoders(options: argparse.Namespace) -> Iterator[tuple[str, TextEncoder]]:
    if options.weights is not None:
        yield options.name, segue.load_encoder(options.weights)
    if options.pretrained is not None:
        own = segue.load_encoder(options.pretrained)
        yield "bert-cpu", own
        yield "bert-cpu, not pre-trained", fresh(own)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """All rows: task, name, figures."""
    for name in options.only:
        data = prepared(name, options.data, options.work)
        yield name, TASKS[name].baseline, TASKS[name].predict(data)
        for title, encoder in encoders(options):
            if name == "similarity" and not title.endswith("not pre-trained"):
                yield name, f"{title}, cosine of vectors without training", cosines(encoder, data)
            run = options.work / "runs" / f"{name}-{title.lower().replace(', ', '-').replace(' ', '-')}"
            tried = [
                fine_tuned(name, encoder, run.with_name(run.name + suffix), data, options, times)
                for times, suffix in (TIMES if title.startswith("bert-cpu") else TIMES[:1])
            ]
            yield (
                name,
                f"{title}, fine-tuned",
                measured(max(tried, key=lambda one: validated(name, one)), data),
            )


def table(name: str, rows: dict[str, dict[str, Any]]) -> str:
    figures = TASKS[name].figures
    heads = [
        figure.replace("_", " ").replace("f1", "F1").replace("macro F1", "macro-F1") for figure in figures
    ]
    lines = [
        f"## {TITLES[name]}",
        "",
        f"| model | {' | '.join(heads)} | learning rate | steps | minutes × threads |",
    ]
    lines.append("|---|" + "---:|" * (len(figures) + 3))
    scale = 1 if name == "similarity" else 100
    for title, row in rows.items():
        shown = [f"{scale * row[figure]:.{3 if scale == 1 else 1}f}" for figure in figures]
        cost = (
            [f"{row.get('learning_rate', '')}", f"{row['steps']:,}", f"{row['minutes']} × {row['threads']}"]
            if "steps" in row
            else ["", "", ""]
        )
        lines.append(f"| {' | '.join([title, *shown, *cost])} |")
    return "\n".join([*lines, ""])


def page(results: dict[str, Any]) -> str:
    about = results["environment"]
    tables = [table(name, results["tasks"][name]) for name in TASKS if name in results["tasks"]]
    return "\n".join(
        [
            "# Encoders, fine-tuned",
            "",
            "    make encoder DATA=tasks WEIGHTS=all-MiniLM-L6-v2 PRETRAINED=runs/bert-cpu",
            "",
            "`bert-cpu` is pre-trained on enwik8's text for an hour on one core ([how](../encoder.md)); beside it",
            "stands the same shape, not pre-trained, with the same steps of fine-tuning. Both try the preset's",
            "learning rate and five times that, and validation chooses.",
            "Presets `classify-cpu`, `pairs-cpu`, `tag-cpu` and `answer-cpu`; where steps are fewer, `--share` was",
            "given. Files, splits and the choice of checkpoints: [encoder_tasks.py](../../bench/encoder_tasks.py); the",
            "baselines: [encoder_baselines.py](../../bench/encoder_baselines.py). As numbers:",
            "[encoder.json](encoder.json). Every row is one seed.",
            f"Machine: {about['processor']}, {about['cores']} cores. {results.get('note', '')}".rstrip(),
            "",
            *tables,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="a folder of Hugging Face, a bundle or a run")
    parser.add_argument("--name", default="all-MiniLM-L6-v2", help="how the weights are called")
    parser.add_argument("--pretrained", type=Path, help="an encoder that was pre-trained here")
    parser.add_argument("--work", type=Path, default=Path("runs/encoder"), help="prepared data and runs")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--share", type=float, default=1.0, help="of the presets' steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--note", help="a sentence for the page, such as what else the machine was doing")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    path = options.output / "encoder.json"
    results = json.loads(path.read_text()) if path.is_file() else {"tasks": {}}
    results["environment"] = {**environment(), "processor": processor(), "cores": os.cpu_count()}
    if options.note is not None:
        results["note"] = options.note
    for name, title, row in measure(options):
        results["tasks"].setdefault(name, {})[title] = row
        print(f"{name}: {title}: {json.dumps(row)}", flush=True)
        write_atomically(path, json.dumps(results, indent=2) + "\n", segue.SegueError)
        write_atomically(options.output / "encoder.md", page(results), segue.SegueError)


if __name__ == "__main__":
    main()
