"""A run on disk: the folder, the recipe as used, versions, the log; to begin, to go on, to extend.

recipe.toml    everything that defines the run, as used
run.json       versions, data, threads, device
log.jsonl      a line for every event
checkpoints/   bundles with all that training needs besides
"""

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import segue
from segue.checkpoint import Bundle, Translator, checkpoints, read_json, write_json
from segue.errors import TrainingError
from segue.interop.vectors import Vectors
from segue.recipe import Recipe, TranslationRecipe, read_recipe, recipe_of, recipe_toml, with_changes
from segue.text.corpus import Corpus, open_corpus
from segue.text.pairs import PairSet, open_pairs
from segue.training.checks import check_feasible, check_fit
from segue.training.embedding import put_vectors
from segue.training.language import LanguageTask
from segue.training.log import Log
from segue.training.loop import Event, Training
from segue.training.state import load_state, save_state
from segue.training.translation import TranslationTask

EXTENDABLE = ("steps", "minutes", "patience", "validate_every", "validate_tokens", "save_every", "keep")
"""What of a recipe may change when a run goes on: how long, how often; never what it computes."""

Watch = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """For those who do not watch."""


def train(
    recipe: Recipe | TranslationRecipe,
    data: Path | str,
    run: Path | str,
    *,
    begin_with: Bundle | Translator | None = None,
    vectors: Vectors | None = None,
    device: str = "cpu",
    watch: Watch = unwatched,
    interrupted: Callable[[], bool] = lambda: False,
) -> Path:
    """Train a model and leave it in the folder `run`. Returns that folder, which `segue.load` reads.

    A language model learns from a corpus, a translator from pairs; `segue.load_translator` reads the latter. `vectors`
    are words from elsewhere for its embedding to begin with; with `train.frozen` they stay as they are.
    """
    run, opened = Path(run), _opened(recipe, data)
    if run.exists():
        raise TrainingError(f"{run} exists; go on with --resume {run}, or choose another name")
    task = _task(recipe, opened, device)
    check_fit(recipe, opened, begin_with)
    check_feasible(recipe, opened, device)
    state = task.fresh(None if begin_with is None else begin_with.model)
    if vectors is not None:
        entering = opened.source if isinstance(opened, PairSet) else opened.tokenizer
        found = put_vectors(state.model, vectors, entering)
        text = f"{found:,} of {entering.size:,} symbols begin as one of the {len(vectors.words):,} vectors"
        watch(Event("note", 0, {"text": text}))
    try:
        run.mkdir(parents=True)
    except OSError as error:
        raise TrainingError(f"{run} could not be made: {error.strerror}") from None
    (run / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    write_json(run / "run.json", _circumstances(opened, device))
    if begin_with or vectors:  # a run that is killed before its first checkpoint must not begin from nothing
        save_state(run, state, recipe.train.keep, task.write)
    _watched(Training(recipe.train, run, task, state, interrupted), watch)
    return run


def _opened(recipe: Recipe | TranslationRecipe, data: Path | str) -> Corpus | PairSet:
    return open_corpus(data) if isinstance(recipe, Recipe) else open_pairs(data)


def _task(
    recipe: Recipe | TranslationRecipe, opened: Corpus | PairSet, device: str
) -> LanguageTask | TranslationTask:
    if isinstance(recipe, Recipe):
        assert isinstance(opened, Corpus)
        return LanguageTask(recipe, opened, torch.device(device))
    assert isinstance(opened, PairSet)
    return TranslationTask(recipe, opened, torch.device(device))


def resume(
    run: Path | str,
    *,
    changes: Sequence[str] = (),
    data: Path | str | None = None,
    device: str | None = None,
    watch: Watch = unwatched,
    interrupted: Callable[[], bool] = lambda: False,
) -> Path:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped."""
    run = Path(run)
    if not (run / "recipe.toml").is_file():
        raise TrainingError(
            f"{run} is no run (it has no recipe.toml); start one: segue train PRESET --data DIR -o {run}"
        )
    recipe = _extended(run, changes)
    told = read_json(run / "run.json")
    device = device or str(told["device"])
    opened = _opened(recipe, data or told["data"])
    if opened.header.checksums != told["checksums"]:
        raise TrainingError(
            f"{opened.folder} is not the corpus that {run} was trained on; give that one with --data"
        )
    warnings: list[str] = []
    if device != told["device"]:
        warnings.append(f"on {device} now and on {told['device']} before: the last bits will differ")
    task = _task(recipe, opened, device)
    if checkpoints(run):
        state = load_state(run, task.fresh, warnings)
    else:  # it was killed before it could save: begin again
        state = task.fresh()
        warnings.append(f"{run} has no checkpoint yet; beginning again")
    if told["threads"] != torch.get_num_threads():
        warnings.append(
            f"{torch.get_num_threads()} threads now and {told['threads']} before: "
            "the last bits will differ from an uninterrupted run"
        )
    for warning in warnings:
        watch(Event("warning", state.counters.step, {"text": warning}))
    (run / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    _watched(Training(recipe.train, run, task, state, interrupted), watch)
    return run


def _watched(training: Training, watch: Watch) -> None:
    with Log(training.run, training.state.counters.step) as log:
        for event in training.events():
            log.write(event)
            watch(event)


def _extended(run: Path, changes: Sequence[str]) -> Recipe | TranslationRecipe:
    values = read_recipe(run / "recipe.toml")
    before, after = recipe_of(values), recipe_of(with_changes(values, changes))
    fixed = dict.fromkeys(EXTENDABLE)
    rest = [one.model_dump(exclude={"train"}) for one in (before, after)]
    if rest[0] != rest[1] or before.train.model_copy(update=fixed) != after.train.model_copy(update=fixed):
        raise TrainingError(
            f"a resumed run keeps its recipe; only {', '.join(f'train.{name}' for name in EXTENDABLE)} may change; "
            "to train these weights differently: segue train --from"
        )
    return after


def _circumstances(opened: Corpus | PairSet, device: str) -> dict[str, Any]:
    return {
        "segue": segue.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": device,
        "data": str(opened.folder.absolute()),
        "checksums": opened.header.checksums,
    }


def read_log(run: Path) -> list[dict[str, Any]]:
    """The events of a run, in order."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
