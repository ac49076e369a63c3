"""Hyperparameter search: which settings give the best bits per byte after a fixed training time on this machine?

    python bench/explore.py --data data/enwik8 --minutes 3 --out explored.json NAME="model.width=256 train.lanes=8" ...

All variants are timed first, in two rounds, to find the number of steps that fits the given minutes, whatever the load
of the machine is later. Every result is added to the file as soon as it is known.
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
from segue.recipe import with_changes
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


def variant(base: str, changes: str) -> segue.Recipe:
    values = segue.preset(base).recipe.model_dump(mode="json")
    return segue.Recipe(
        **with_changes(values, ["train.validate_every=0", "train.save_every=0", *changes.split()])
    )


def trained(recipe: segue.Recipe, data: Path, tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        run = segue.train(recipe, data, Path(folder) / "run")
        seconds = time.monotonic() - begin
        model, stream = segue.load(run).model, open_corpus(data).stream("valid")
    scores: dict[str, Any] = {"seconds": round(seconds), "steps": recipe.train.steps}
    for memory in (recipe.train.memory, 4 * recipe.train.memory):
        reading = Reading(segment=recipe.train.segment, reach=Reach(memory=memory))
        score = evaluate(model, stream, reading, limit=tokens, lanes=8)
        scores[f"memory {memory}"] = round(score.bits_per_byte, 4)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", default="stdlib-demo")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--tokens", type=int, default=200_000, help="tokens of the validation split to score")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("variants", nargs="+", metavar="NAME=CHANGES")
    words = parser.parse_args()
    torch.set_num_threads(2)
    named = dict(word.split("=", 1) for word in words.variants)
    recipes = {name: variant(words.base, changes) for name, changes in named.items()}
    corpus = open_corpus(words.data)
    paces: dict[str, float] = {}
    for _ in range(2):
        for name, recipe in recipes.items():
            paces[name] = min(paces.get(name, 1e9), seconds_per_step(recipe, corpus))
    results = json.loads(words.out.read_text()) if words.out.exists() else []
    for name in recipes:
        steps = max(20, round(60 * words.minutes / paces[name]))
        fitted = variant(words.base, f"{named[name]} train.steps={steps} train.warmup={steps // 20}")
        scores = trained(fitted, words.data, words.tokens)
        results.append({"name": name, "changes": named[name], "minutes": words.minutes, **scores})
        words.out.write_text(json.dumps(results, indent=1) + "\n")
        print(results[-1], flush=True)


if __name__ == "__main__":
    main()
