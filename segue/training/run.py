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
from segue.checkpoint import Bundle, checkpoints, read_json, write_json
from segue.config import Recipe, read_recipe, recipe_toml, with_changes
from segue.errors import TrainingError
from segue.text.corpus import Corpus, open_corpus
from segue.text.lanes import Lanes
from segue.text.tokenizer import digest
from segue.training.log import Log
from segue.training.loop import Event, Training
from segue.training.state import fresh_state, load_state, save_state

EXTENDABLE = ("steps", "minutes", "patience", "validate_every", "validate_tokens", "save_every", "keep")
"""What of a recipe may change when a run goes on: how long, how often; never what it computes."""

Watch = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """For those who do not watch."""


def train(
    recipe: Recipe,
    data: Path | str,
    run: Path | str,
    *,
    begin_with: Bundle | None = None,
    device: str = "cpu",
    watch: Watch = unwatched,
    interrupted: Callable[[], bool] = lambda: False,
) -> Path:
    """Train a model and leave it in the folder `run`. Returns that folder, which `segue.load` reads."""
    run, corpus = Path(run), open_corpus(data)
    if run.exists():
        raise TrainingError(f"{run} exists; go on with --resume {run}, or choose another name")
    _check_fit(recipe, corpus, begin_with)
    _check_feasible(recipe, corpus, device)
    state = fresh_state(recipe, torch.device(device), None if begin_with is None else begin_with.model)
    try:
        run.mkdir(parents=True)
    except OSError as error:
        raise TrainingError(f"{run} could not be made: {error.strerror}") from None
    (run / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    write_json(run / "run.json", _circumstances(corpus, device))
    if begin_with is not None:  # a run that is killed before its first checkpoint must not begin from nothing
        save_state(run, state, recipe, corpus.tokenizer)
    _watched(Training(recipe, run, corpus, state, torch.device(device), interrupted), watch)
    return run


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
    corpus = open_corpus(data or told["data"])
    if corpus.header.checksums != told["checksums"]:
        raise TrainingError(
            f"{corpus.folder} is not the corpus that {run} was trained on; give that one with --data"
        )
    warnings: list[str] = []
    if device != told["device"]:
        warnings.append(f"on {device} now and on {told['device']} before: the last bits will differ")
    if checkpoints(run):
        state = load_state(run, recipe, torch.device(device), warnings)
    else:  # it was killed before it could save: begin again
        state = fresh_state(recipe, torch.device(device))
        warnings.append(f"{run} has no checkpoint yet; beginning again")
    if told["threads"] != torch.get_num_threads():
        warnings.append(
            f"{torch.get_num_threads()} threads now and {told['threads']} before: "
            "the last bits will differ from an uninterrupted run"
        )
    for warning in warnings:
        watch(Event("warning", state.counters.step, {"text": warning}))
    (run / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    _watched(Training(recipe, run, corpus, state, torch.device(device), interrupted), watch)
    return run


def _watched(training: Training, watch: Watch) -> None:
    with Log(training.run, training.state.counters.step) as log:
        for event in training.events():
            log.write(event)
            watch(event)


def _extended(run: Path, changes: Sequence[str]) -> Recipe:
    values = read_recipe(run / "recipe.toml")
    before, after = Recipe(**values), Recipe(**with_changes(values, changes))
    fixed = dict.fromkeys(EXTENDABLE)
    if before.model_copy(update={"train": None}) != after.model_copy(update={"train": None}) or (
        before.train.model_copy(update=fixed) != after.train.model_copy(update=fixed)
    ):
        raise TrainingError(
            f"a resumed run keeps its recipe; only {', '.join(f'train.{name}' for name in EXTENDABLE)} may change; "
            "to train these weights differently: segue train --from"
        )
    return after


def _check_fit(recipe: Recipe, corpus: Corpus, begin_with: Bundle | None) -> None:
    if recipe.model.vocab != corpus.header.vocab:
        raise TrainingError(
            f"the model has {recipe.model.vocab:,} symbols and {corpus.folder} {corpus.header.vocab:,}; "
            f"prepare it with the model's tokenizer, or use --set model.vocab={corpus.header.vocab}"
        )
    if begin_with is None:
        return
    if begin_with.model.config.model_dump(
        exclude={"dropout", "attention_dropout"}
    ) != recipe.model.model_dump(exclude={"dropout", "attention_dropout"}):
        raise TrainingError("the recipe's model is not the bundle's; fine-tuning keeps the shape it finds")
    if begin_with.tokenizer is not None and digest(begin_with.tokenizer) != digest(corpus.tokenizer):
        raise TrainingError(
            f"{corpus.folder} was not prepared with the bundle's tokenizer; "
            "prepare it again with --tokenizer file --tokenizer-file BUNDLE/tokenizer.json"
        )


def _check_feasible(recipe: Recipe, corpus: Corpus, device: str) -> None:
    """What would stop the run later is better known before it begins."""
    train, model = recipe.train, recipe.model
    Lanes(corpus.stream("train"), train.lanes).segment(0, train.segment)  # is there enough text?
    if train.validate_every:
        corpus.stream("valid")
    if train.precision == "bfloat16" and device == "cpu":
        raise TrainingError("train.precision bfloat16 is for GPUs; on a CPU use float32")
    limited = model.encoding in ("learned", "per-layer")
    if limited and (train.positions == "onward" or train.segment > model.table):
        raise TrainingError(
            f"encoding {model.encoding!r} has {model.table} positions and training never stops counting; "
            "train isolated segments: train.memory=0, train.positions='restart', and a segment that fits"
        )


def _circumstances(corpus: Corpus, device: str) -> dict[str, Any]:
    return {
        "segue": segue.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": device,
        "data": str(corpus.folder.absolute()),
        "checksums": corpus.header.checksums,
    }


def read_log(run: Path) -> list[dict[str, Any]]:
    """The events of a run, in order."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
