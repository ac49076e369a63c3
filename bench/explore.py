"""Hyperparameter search: which settings give the best bits per byte after a fixed training time on this machine?

    python bench/explore.py --data data/enwik8 --minutes 3 --out explored.json NAME="model.width=256 train.lanes=8" ...

All variants are timed first, in two rounds, to find the number of steps that fits the given minutes, whatever the load
of the machine is later. Every result is added to the file as soon as it is known.

    python bench/explore.py --processor --base enwik8-cpu --data data/enwik8-bpe --minutes 3 --out explored.json ...

`--processor` is for a machine that does other work too: one thread, minutes of processor time, and a learning rate that
follows them, so that it is at its floor when they end, whatever the pace was.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import segue
from segue.config import Reach, Reading
from segue.infer.evaluate import evaluate
from segue.nn.language import LanguageModel
from segue.recipe import TrainConfig, with_changes
from segue.text.corpus import Corpus, open_corpus
from segue.training.language import LanguageTask
from segue.training.loop import Training


def seconds_per_step(recipe: segue.Recipe, corpus: Corpus) -> float:
    """The median time of a few steps, after the memory has filled."""
    task = LanguageTask(recipe, corpus, torch.device("cpu"))
    training = Training(recipe.train, Path(), task, task.fresh())
    times, last = [], 0.0
    for event in training.events():
        if event.kind == "step":
            times.append(event.values["seconds"] - last)
            last = event.values["seconds"]
        if len(times) == 9:
            break
    return statistics.median(times[3:])


DERIVED = ("embedding", "feedforward", "head_width")
"""Settings that follow the width and the heads unless they are given."""


def variant(base: str, changes: str) -> segue.Recipe:
    values = segue.preset(base).recipe.model_dump(mode="json")
    for name in DERIVED:
        values["model"].pop(name, None)
    return segue.Recipe(
        **with_changes(values, ["train.validate_every=0", "train.save_every=0", *changes.split()])
    )


def trained(recipe: segue.Recipe, data: Path, nbytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        run = segue.train(recipe, data, Path(folder) / "run")
        seconds = time.monotonic() - begin
        model, corpus = segue.load(run).model, open_corpus(data)
    return {
        "seconds": round(seconds),
        "steps": recipe.train.steps,
        **scores_of(model, corpus, recipe.train, nbytes),
    }


def trained_by_processor(recipe: segue.Recipe, data: Path, minutes: float, nbytes: int) -> dict[str, Any]:
    """The schedule's end is estimated anew after every step: so many steps as fit the processor time."""
    torch.manual_seed(recipe.train.seed)
    corpus = open_corpus(data)
    with tempfile.TemporaryDirectory() as folder:
        task = LanguageTask(recipe, corpus, torch.device("cpu"))
        training = Training(recipe.train, Path(folder), task, task.fresh())
        begin, spent = time.process_time(), 0.0
        for event in training.events():
            if event.kind == "step":
                spent = (time.process_time() - begin) / 60 / minutes
                training.schedule = ending(recipe.train, event.step, spent)
    steps, model = training.state.counters.step, training.state.model
    assert isinstance(model, LanguageModel)
    model.eval()
    return {
        "seconds of processor time": round(60 * minutes * spent),
        "steps": steps,
        **scores_of(model, corpus, recipe.train, nbytes),
    }


def ending(train: TrainConfig, step: int, spent: float) -> TrainConfig:
    """The schedule that ends when all the time is spent, if steps go on at the pace of the first `step` steps."""
    steps = step if spent >= 1 else max(step + 1, round(step / spent))
    return train.model_copy(update={"steps": steps, "warmup": steps // 20})


def scores_of(model: LanguageModel, corpus: Corpus, train: TrainConfig, nbytes: int) -> dict[str, float]:
    """Bits per byte of the first bytes of validation text: with the memory of training, and with four times that."""
    stream, scores = corpus.stream("valid"), {}
    tokens = round(nbytes * stream.split.tokens / stream.split.bytes)
    for memory in (train.memory, 4 * train.memory):
        reading = Reading(segment=train.segment, reach=Reach(memory=memory))
        score = evaluate(model, stream, reading, limit=tokens, lanes=8)
        scores[f"memory {memory}"] = round(score.bits_per_byte, 4)
    return scores


def paces_of(recipes: dict[str, segue.Recipe], corpus: Corpus) -> dict[str, float]:
    """The seconds of a step of each, the better of two rounds."""
    paces: dict[str, float] = {}
    for _ in range(2):
        for name, recipe in recipes.items():
            paces[name] = min(paces.get(name, 1e9), seconds_per_step(recipe, corpus))
    return paces


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", default="stdlib-demo")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--bytes", type=int, default=400_000, help="bytes of the validation split to score")
    parser.add_argument("--processor", action="store_true", help="minutes of processor time, on one thread")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("variants", nargs="+", metavar="NAME=CHANGES")
    words = parser.parse_args()
    torch.set_num_threads(1 if words.processor else 2)
    named = dict(word.split("=", 1) for word in words.variants)
    recipes = {name: variant(words.base, changes) for name, changes in named.items()}
    paces = {} if words.processor else paces_of(recipes, open_corpus(words.data))
    results = json.loads(words.out.read_text()) if words.out.exists() else []
    for name, recipe in recipes.items():
        if words.processor:
            scores = trained_by_processor(recipe, words.data, words.minutes, words.bytes)
        else:
            steps = max(20, round(60 * words.minutes / paces[name]))
            fitted = variant(words.base, f"{named[name]} train.steps={steps} train.warmup={steps // 20}")
            scores = trained(fitted, words.data, words.bytes)
        results.append({"name": name, "changes": named[name], "minutes": words.minutes, **scores})
        words.out.write_text(json.dumps(results, indent=1) + "\n")
        print(results[-1], flush=True)


if __name__ == "__main__":
    main()
