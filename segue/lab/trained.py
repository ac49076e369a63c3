"""Small models, trained by recipe with an equal budget, each once: experiments share the models that they train.

A run lies under `runs/` in the output. Its name is a digest of what defines it; a killed run resumes from its
checkpoint.
"""

import json
from collections import Counter
from collections.abc import Sequence
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
from segue.lab.source_digest import digest_here
from segue.recipe import Recipe, TrainConfig
from segue.training import run as runs
from segue.training.loop import Event
from segue.training.run import read_log


def named(runs: Sequence[Path]) -> dict[str, Path]:
    """The runs, each once; named by their folders, or by their paths where two folders have the same name."""
    distinct = list({path.resolve(): path for path in runs}.values())
    names = Counter(path.name for path in distinct)
    return {path.name if names[path.name] == 1 else str(path): path for path in distinct}


@dataclass(frozen=True)
class Budget:
    """What every side of a comparison gets: the same shape, tokens, steps and learning rate."""

    width: int
    layers: int
    heads: int
    lanes: int
    segment: int
    steps: int
    learning_rate: float = 1e-2  # of Muon, where nothing is tuned
    scored: int = 50_000  # tokens of the test split that are scored

    @property
    def tokens(self) -> int:
        """The number of training tokens."""
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
    """A Transformer-XL within the budget; by default its memory is as long as the segment.

    With a memory, absolute positions continue from segment to segment; without one they restart in each.
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
    """The training settings that all recipes share."""
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


def trained(setting: Setting, recipe: Recipe, label: str) -> Bundle:
    """The model of a recipe, trained on the setting's corpus now unless its run is there already."""
    return load(trained_run(setting, recipe, label))


def trained_run(setting: Setting, recipe: Recipe, label: str) -> Path:
    """The same, as the run's folder, with its training log. `label` names it in the progress line."""
    run = setting.output / "runs" / run_name(setting, recipe)

    def watch(event: Event) -> None:
        if event.kind == "step":
            setting.report(f"training {label}", event.step, recipe.train.steps)

    if not (run / "run.json").is_file():
        runs.train(recipe, setting.data, run, watch=watch)
    elif not _finished(run):
        runs.resume(run, data=setting.data, watch=watch)
    return run


def run_name(setting: Setting, recipe: Recipe) -> str:
    """A digest of the recipe, the data and the code that trains."""
    key = [recipe.model_dump(mode="json"), setting.corpus.header.checksums, digest_here(runs.__name__)]
    return sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def _finished(run: Path) -> bool:
    try:
        events = read_log(run)
    except InputError:  # killed before it began, or while it wrote a line, or damaged since
        return False
    return any(event["kind"] == "done" for event in events[-1:])


def training_seconds(run: Path) -> float:
    """The training time of a run."""
    return float(read_log(run)[-1]["seconds"])


@dataclass(frozen=True)
class EvaluationMode:
    """How a model is evaluated: with a memory or with a sliding window."""

    name: str
    reading: Reading
    attention: int  # the most keys that a token attends to
    sliding: bool = False


def score(
    setting: Setting,
    bundle: Bundle,
    mode: EvaluationMode | None = None,
    *,
    split: str = "test",
    label: str = "",
) -> Score:
    """The score of a model on the beginning of a split, read as in training or in another mode."""
    read = partial(evaluate_sliding, batch=128) if mode is not None and mode.sliding else evaluate
    return read(
        bundle.model,
        setting.stream(split),
        bundle.reading if mode is None else mode.reading,
        limit=scored_tokens(setting, split),
        report=lambda _task, done, total: setting.report(f"reading {label}".strip(), done, total),
    )


def scored_tokens(setting: Setting, split: str = "test") -> int:
    """The number of tokens of a split that are scored."""
    available = len(setting.stream(split).ids) - 1
    if available < 1000:
        raise InputError(
            f"{setting.data} has a {split} split of {available + 1} tokens; the lab needs 1,001 or more"
        )
    return min(budget(setting).scored, available)


def as_trained(bundle: Bundle) -> EvaluationMode:
    """Segment by segment, with the memory length of training."""
    reading = bundle.reading
    return EvaluationMode("as trained", reading, reading.segment + reading.reach.memory)


def with_memory(bundle: Bundle, memory: int, *, clamp: int | None = None) -> EvaluationMode:
    """With a memory of that length, and as many keys for every token: the paper's evaluation."""
    reading = Reading(segment=bundle.reading.segment, reach=Reach(memory=memory, span=memory, clamp=clamp))
    return EvaluationMode(f"memory {memory}" + (f", clamp {clamp}" if clamp else ""), reading, memory)


def sliding_window(bundle: Bundle) -> EvaluationMode:
    """A sliding window: a whole segment is read again for every token, so that each has full context."""
    segment = bundle.reading.segment
    positions = bundle.reading.reach.positions
    reading = Reading(segment=segment, reach=Reach(memory=0, positions=positions))
    return EvaluationMode("sliding by one", reading, segment, sliding=True)
