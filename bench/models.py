"""Every language model side by side: the same text, tokens, parameters and tuning effort, three seeds.

    segue prepare enwik8 --file enwik8.xz -o data/enwik8
    make models DATA=data/enwik8                     # hours on 2 cores; an interrupted one goes on where it was
    make models DATA=data/enwik8 MORE="--only xl lstm --steps 100"

Each model first tries the same optimizer settings for a quarter of the steps, and takes the one with the lowest
validation loss. Figures of finished trainings are kept in docs/results/models.json and not made again. Times come
from a run of their own (`--speed`), in which all models take turns.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import segue
from machine import environment, interleaved
from model_rows import MODELS, SEGMENT, Row, fitted
from segue.footprint import parameters
from segue.infer.evaluate import evaluate
from segue.lab.tuning import TRIES
from segue.nn.models import build_language_model
from segue.recipe import Recipe
from segue.text.corpus import open_corpus
from segue.training.language import LanguageTask
from segue.training.run import read_log

RESULTS = Path(__file__).parents[1] / "docs/results/models.json"
LANES, SEEDS, SCORED = 16, (0, 1, 2), 100_000


def recipe_for(row: Row, vocab: int, steps: int, **train: Any) -> Recipe:
    """The row's model at the common size, with the settings that all rows share."""
    shared = {
        "lanes": LANES,
        "segment": SEGMENT,
        "steps": steps,
        "warmup": max(1, steps // 20),
        "floor": 0.02,
        "beta2": 0.98,
        "clip": 1.0,
        "documents": False,
        "save_every": 0,
    }
    if row.intermediate:
        shared["intermediate"] = steps // 2
    settings = segue.TrainConfig(**{**shared, **row.train, **train})
    reading = segue.Reading(segment=SEGMENT, reach=settings.reach)
    return Recipe(model=fitted(row, vocab), train=settings, reading=reading)


class Book:
    """Figures of trainings by a digest of recipe and data; written after each."""

    def __init__(self, path: Path, data: Path, runs: Path) -> None:
        self.path, self.data, self.runs = path, data, runs
        self.values = json.loads(path.read_text()) if path.exists() else {}
        self.trained = self.values.setdefault("trained", {})
        self.checksums = open_corpus(data).header.checksums

    def figures(self, name: str, recipe: Recipe) -> dict[str, Any]:
        """Bits per byte of validation and test, trained now unless they are known."""
        key = json.dumps([recipe.model_dump(mode="json"), self.checksums], sort_keys=True)
        digest = sha256(key.encode()).hexdigest()[:16]
        if digest not in self.trained:
            self.trained[digest] = {"model": name, "seed": recipe.train.seed, **self._train(digest, recipe)}
            self.write()
            print(name, self.trained[digest], flush=True)
        known: dict[str, Any] = self.trained[digest]
        return known

    def _train(self, digest: str, recipe: Recipe) -> dict[str, Any]:
        run = self.runs / digest
        segue.resume(run) if run.exists() else segue.train(recipe, self.data, run)
        bundle, corpus = segue.load(run), open_corpus(self.data)
        bits = {
            split: evaluate(bundle.model, corpus.stream(split), recipe.reading, limit=SCORED).bits_per_byte
            for split in ("valid", "test")
        }
        seconds = round(read_log(run)[-1]["seconds"], 1)
        shutil.rmtree(run)
        schedule = recipe.train.model_dump(include={"optimizer", "learning_rate", "steps"})
        return {**schedule, **{split: round(value, 4) for split, value in bits.items()}, "seconds": seconds}

    def write(self) -> None:
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(self.values, indent=1) + "\n")
        aside.rename(self.path)


def measured(book: Book, name: str, vocab: int, steps: int) -> dict[str, Any]:
    """A row: tuned, then trained with each seed."""
    row, short = MODELS[name], max(20, steps // 4)
    tries = [book.figures(name, recipe_for(row, vocab, short, **one)) for one in TRIES]
    best = TRIES[min(range(len(TRIES)), key=lambda place: tries[place]["valid"])]
    seeds = [book.figures(name, recipe_for(row, vocab, steps, seed=seed, **best)) for seed in SEEDS]
    return {
        "parameters": parameters(fitted(row, vocab)),
        "note": row.note,
        **best,
        "tokens": steps * LANES * SEGMENT,
        "valid": [one["valid"] for one in seeds],
        "test": [one["test"] for one in seeds],
    }


def speeds(data: Path, names: list[str]) -> dict[str, dict[str, float]]:
    """Seconds of a training step and of a generated token, and bytes of memory per stream, all models in turn."""
    corpus = open_corpus(data)
    steps, tokens, held = {}, {}, {}
    for name in names:
        recipe = recipe_for(MODELS[name], corpus.header.vocab, 1000)
        steps[name] = _training(recipe, corpus)
        tokens[name], held[name] = _generation(recipe)
    step, token = interleaved(steps, repeats=7), interleaved(tokens, repeats=30)
    return {
        name: {
            "step seconds": step[name].fastest,
            "token seconds": token[name].fastest,
            "memory bytes": held[name],
        }
        for name in names
    }


def _training(recipe: Recipe, corpus: Any) -> Callable[[], None]:
    """A function that takes one more training step at each call."""
    task = LanguageTask(recipe, corpus, torch.device("cpu"))
    state = task.fresh()

    def step() -> None:
        for micro_batch in task.micro_batches(state):
            micro_batch.backward()
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _generation(recipe: Recipe) -> tuple[Callable[[], None], int]:
    """A function that reads one more token of a stream, with full memory; and the bytes of that memory."""
    engine = build_language_model(recipe.model).eval().frozen()
    memory = engine.start(lanes=1, reach=recipe.reading.reach)
    for _ in range(1 + recipe.reading.reach.memory // SEGMENT):
        _, memory = engine(torch.randint(0, recipe.model.vocab, (1, SEGMENT)), memory)
    held = [memory]
    bytes_held = sum(row.numel() * row.element_size() for row in memory.tensors().values())

    def read() -> None:
        hidden, held[0] = engine(torch.randint(0, recipe.model.vocab, (1, 1)), held[0])
        engine.logprobs(hidden)

    return read, bytes_held


def page(values: dict[str, Any]) -> str:
    """The JSON as a Markdown page, the best model first."""
    rows = sorted(values["rows"].items(), key=lambda item: mean(item[1]["test"]))
    tokens, threads = values["tokens"], values.get("speed threads")
    lines = "\n".join(_line(name, row, values.get("speed", {}).get(name)) for name, row in rows)
    return f"""# Every language model side by side

    make models DATA={values["data"]}

Bits per byte of the first {SCORED:,} bytes of {values["data"]}'s test split, read as in training;
mean of {len(SEEDS)} seeds ± half their range. All models have the same {tokens:,} training tokens
({LANES} lanes, segments of {SEGMENT}), about the same number of parameters, and the best of {len(TRIES)} optimizer
settings, tried for a quarter of the steps. At this scale the order says how fast a model learns from little text,
not how good it can become. Times are the fastest of several repeats, all models in turn (threads: {threads}): of a
step of {LANES * SEGMENT:,} tokens, and of one generated token. Memory is that of one stream.

| model | parameters | bits per byte | optimizer | ms per step | ms per token | memory, KB | |
|---|---|---|---|---|---|---|---|
{lines}

All trainings: [models.json](models.json); their `seconds` include waiting for other work.{_missing(values)}
"""


def _missing(values: dict[str, Any]) -> str:
    names = [name for name in MODELS if name not in values["rows"]]
    return f" Not measured yet: {', '.join(names)}." if names else ""


def _line(name: str, row: dict[str, Any], speed: dict[str, float] | None) -> str:
    spread = (max(row["test"]) - min(row["test"])) / 2
    times = (
        f"{1e3 * speed['step seconds']:.0f} | {1e3 * speed['token seconds']:.2f} | {speed['memory bytes'] / 1e3:,.0f}"
        if speed
        else " | | "
    )
    return (
        f"| {name} | {row['parameters']:,} | **{mean(row['test']):.3f}** ± {spread:.3f} "
        f"| {row['optimizer']}, {row['learning_rate']:g} | {times} | {row['note']} |"
    )


def words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--speed", action="store_true", help="measure times only")
    parser.add_argument("--runs", type=Path, default=Path("runs/models"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    given = words()
    torch.set_num_threads(given.threads)
    vocab = open_corpus(given.data).header.vocab
    book = Book(given.out, given.data, given.runs)
    for name, row in _rows(book, given, vocab):
        about = {"data": given.data.name, "tokens": given.steps * LANES * SEGMENT}
        book.values |= {**about, "made": time.strftime("%Y-%m-%d"), "environment": environment()}
        book.values.setdefault("rows", {})[name] = row
        book.write()
        given.out.with_suffix(".md").write_text(page(book.values))
    if given.speed or len(given.only) == len(MODELS):
        book.values |= {"speed": speeds(given.data, given.only), "speed threads": given.threads}
        book.write()
        given.out.with_suffix(".md").write_text(page(book.values))


def _rows(book: Book, given: argparse.Namespace, vocab: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if not given.speed:
        yield from ((name, measured(book, name, vocab, given.steps)) for name in given.only)


if __name__ == "__main__":
    main()
