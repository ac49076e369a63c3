"""Small models, trained by recipe with an equal budget, each once: what any experiment trained, all others find.

A run lies under `runs/` in the output, named by what defines it; one that was killed goes on from its checkpoint.
"""

import json
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from segue.checkpoint import Bundle, load
from segue.config import ENCODINGS, Reach, Reading, XLConfig
from segue.errors import InputError
from segue.infer.evaluate import Score, evaluate, evaluate_sliding
from segue.lab.experiment import Setting
from segue.lab.sources import digest_here
from segue.recipe import Recipe, TrainConfig
from segue.training import run as runs
from segue.training.loop import Event
from segue.training.run import read_log


@dataclass(frozen=True)
class Budget:
    """What every side of a comparison gets: the same shape, tokens, steps and rate."""

    width: int
    layers: int
    heads: int
    lanes: int
    segment: int
    steps: int
    learning_rate: float = 1e-2  # of muon, where nothing is tuned
    scored: int = 50_000  # tokens of the test split that are scored

    @property
    def tokens(self) -> int:
        """Read in training."""
        return self.lanes * self.segment * self.steps


QUICK = Budget(width=64, layers=2, heads=2, lanes=32, segment=32, steps=350, scored=8000)
FULL = Budget(width=128, layers=3, heads=4, lanes=32, segment=64, steps=1000, scored=20_000)


def budget(setting: Setting) -> Budget:
    """The budget that experiments share, so that they share models too."""
    return QUICK if setting.quick else FULL


def recipe_for(
    setting: Setting,
    *,
    seed: int,
    encoding: str = "xl",
    memory: int | None = None,
    loss: str = "whole",
    positions: str | None = None,
    given: Budget | None = None,
) -> Recipe:
    """A Transformer-XL within the budget; with a memory as long as the segment, unless told otherwise.

    Absolute encodings count on with a memory, and anew in every segment without one.
    """
    size = given or budget(setting)
    memory = size.segment if memory is None else memory
    tables = {
        "shaw": {"max_distance": size.segment + memory},
        "learned": {"max_positions": size.segment},
        "per-layer": {"max_positions": size.segment},
    }
    restarting = ENCODINGS[encoding].counts and not memory
    positions = positions or ("restart" if restarting else "onward")
    model: dict[str, Any] = {"encoding": encoding, **tables.get(encoding, {})}
    train = schedule(size, seed=seed, memory=memory, loss=loss, positions=positions)
    return Recipe(
        model=XLConfig(
            vocab=setting.corpus.header.vocab,
            width=size.width,
            layers=size.layers,
            heads=size.heads,
            **model,
        ),
        train=train,
        reading=Reading(segment=size.segment, reach=train.reach),
    )


def schedule(size: Budget, *, seed: int, memory: int, **more: Any) -> TrainConfig:
    """The same tuning for all: what of a recipe is not the model's."""
    settings: dict[str, Any] = {
        "lanes": size.lanes,
        "segment": size.segment,
        "memory": memory,
        "steps": size.steps,
        "optimizer": "muon",
        "learning_rate": size.learning_rate,
        "warmup": max(1, size.steps // 20),
        "floor": 0.02,
        "beta2": 0.98,
        "clip": 1.0,
        "seed": seed,
        "save_every": 200,
        "keep": 1,
    }
    return TrainConfig(**{**settings, **more})


def trained(setting: Setting, recipe: Recipe, told: str) -> Bundle:
    """The model that the recipe makes of the setting's corpus, trained now unless it already was."""
    return load(trained_run(setting, recipe, told))


def trained_run(setting: Setting, recipe: Recipe, told: str) -> Path:
    """The same, as the folder of its run; its log tells how training went. `told` is for whoever watches."""
    run = setting.output / "runs" / run_name(setting, recipe)

    def watch(event: Event) -> None:
        if event.kind == "step":
            setting.report(f"training {told}", event.step, recipe.train.steps)

    if not (run / "run.json").is_file():
        runs.train(recipe, setting.data, run, watch=watch)
    elif not _finished(run):
        runs.resume(run, data=setting.data, watch=watch)
    return run


def run_name(setting: Setting, recipe: Recipe) -> str:
    """A digest of all that decides what comes out: recipe, data, and the code that trains."""
    decisive = [recipe.model_dump(mode="json"), setting.corpus.header.checksums, digest_here(runs.__name__)]
    return sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def _finished(run: Path) -> bool:
    if not (run / "log.jsonl").is_file():
        return False
    try:
        events = read_log(run)
    except (ValueError, RecursionError):  # killed while it wrote a line, or damaged since
        return False
    return any(event["kind"] == "done" for event in events[-1:])


def training_seconds(run: Path) -> float:
    """How long a run took."""
    return float(read_log(run)[-1]["seconds"])


@dataclass(frozen=True)
class Way:
    """How a model is read: with a memory, or anew for every token; and how many keys a token sees."""

    name: str
    reading: Reading
    attention: int
    sliding: bool = False


def score(
    setting: Setting, bundle: Bundle, way: Way | None = None, *, split: str = "test", told: str = ""
) -> Score:
    """How well a model reads the beginning of a split; as it was trained to, or in another way."""
    read = partial(evaluate_sliding, batch=128) if way is not None and way.sliding else evaluate
    return read(
        bundle.model,
        setting.stream(split),
        bundle.reading if way is None else way.reading,
        limit=scored_tokens(setting, split),
        report=lambda _task, done, total: setting.report(f"reading {told}".strip(), done, total),
    )


def scored_tokens(setting: Setting, split: str = "test") -> int:
    """How much of a split is scored."""
    wanted, there = budget(setting).scored, len(setting.stream(split).ids) - 1
    if there < 1000:
        raise InputError(
            f"{setting.data} has a {split} split of {there + 1} tokens; the lab wants 1,001 or more"
        )
    return min(wanted, there)


def as_trained(bundle: Bundle) -> Way:
    """Segment by segment, with the memory that it was trained with."""
    reading = bundle.reading
    return Way("as trained", reading, reading.segment + reading.reach.memory)


def remembering(bundle: Bundle, memory: int) -> Way:
    """With a memory of that length, every token seeing as many keys: the paper's way to evaluate."""
    segment = bundle.reading.segment
    return Way(f"memory {memory}", Reading(segment=segment, reach=Reach(memory=memory, span=memory)), memory)


def sliding(bundle: Bundle) -> Way:
    """By one token at a time, a segment read anew for each: the vanilla way, where every token sees enough."""
    segment = bundle.reading.segment
    positions = bundle.reading.reach.positions
    reading = Reading(segment=segment, reach=Reach(memory=0, positions=positions))
    return Way("sliding by one", reading, segment, sliding=True)
