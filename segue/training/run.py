"""A run on disk: the folder, the recipe as used, versions, the log; to begin, to go on, to extend.

recipe.toml    everything that defines the run, as used
run.json       versions, data, threads, device
log.jsonl      a line for every event
checkpoints/   bundles with all that training needs besides
"""

import json
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

import segue
from segue.checkpoint import CHECKPOINTS, Bundle, Translator, checkpoints, read_json
from segue.distributed import Ranks, process_group
from segue.errors import TrainingError
from segue.files import beside, flush, locked, write_whole
from segue.interop.vectors import Vectors
from segue.launch import launch_id, local_device, processor, restart_count
from segue.recipe import Extension, Recipe, TranslationRecipe, recipe_toml
from segue.text.corpus import Corpus, open_corpus
from segue.text.pairs import PairSet, open_pairs
from segue.training.checks import check_dealt, check_feasible, check_fit
from segue.training.embedding import put_vectors
from segue.training.extend import Extended, back_to, extended
from segue.training.language import LanguageTask
from segue.training.log import Log
from segue.training.loop import Event, Training
from segue.training.state import State, load_state, save_state
from segue.training.translation import TranslationTask

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
    Under torchrun all ranks call it, and go on with the run if torchrun had to start them again.
    """
    run = Path(run)
    with process_group() as ranks:
        if ranks.from_rank_zero(lambda: _begun(run)):
            return resume(run, data=data, device=device, watch=watch, interrupted=interrupted)

        def checked() -> Corpus | PairSet:
            opened = _opened(recipe, data)
            check_fit(recipe, opened, begin_with)
            check_feasible(recipe, opened, device)
            check_dealt(recipe, ranks.world_size)
            return opened

        opened = ranks.on_every_rank(checked)
        _check_agreement(recipe, opened, ranks)
        task = _task(recipe, opened, device, ranks)
        state = task.fresh(None if begin_with is None else begin_with.model)
        if vectors is not None:
            watch(Event("note", 0, {"text": _entered(ranks, state, vectors, opened)}))
        fresh = ranks.from_rank_zero(lambda: _make(run))
        with _alone(fresh, ranks):
            ranks.from_rank_zero(lambda: _describe(fresh, recipe, _circumstances(opened, device, ranks)))
            ranks.on_every_rank(lambda: _check_shared(fresh))
            if begin_with or vectors:
                # a run that is killed before its first checkpoint must not begin from nothing
                save_state(fresh, state, recipe.train, task.write, ranks)
                ranks.wait_for_save()
            ranks.from_rank_zero(lambda: _put(fresh, run))
            _watched(Training(recipe.train, run, task, state, interrupted, ranks), watch)
    return run


@contextmanager
def _alone(run: Path, ranks: Ranks) -> Iterator[None]:
    """Hold the run's lock, on rank 0 for all."""
    with ExitStack() as stack:
        ranks.from_rank_zero(lambda: stack.enter_context(locked(run, TrainingError)))
        yield


def _entered(ranks: Ranks, state: State, vectors: Vectors, opened: Corpus | PairSet) -> str:
    """Put the vectors into the embedding, and tell how many symbols they were for."""
    tokenizer = opened.source if isinstance(opened, PairSet) else opened.tokenizer
    found = ranks.on_every_rank(lambda: put_vectors(state.model, vectors, tokenizer))
    return f"{found:,} of {tokenizer.size:,} symbols begin as one of the {len(vectors.words):,} vectors"


def _begun(run: Path) -> bool:
    """Whether this launch of several ranks has begun the run already, and was started again since."""
    if not run.exists():
        return False
    ours = (run / "run.json").is_file() and (
        restart_count() or (launch_id() and read_json(run / "run.json").get("launch") == launch_id())
    )
    if not ours:
        raise TrainingError(f"{run} exists; go on with --resume {run}, or choose another name")
    return True


def _make(run: Path) -> Path:
    """A folder for a new run, beside its place until it is complete."""
    fresh = beside(run.resolve(), "new")
    try:
        fresh.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{run} could not be made: {error.strerror}") from None
    return fresh


def _describe(fresh: Path, recipe: Recipe | TranslationRecipe, circumstances: dict[str, Any]) -> None:
    """What defines the run, into its new folder, from which a killed beginning is removed first."""
    shutil.rmtree(fresh / CHECKPOINTS, ignore_errors=True)
    write_whole(fresh / "recipe.toml", recipe_toml(recipe), TrainingError)
    write_whole(fresh / "run.json", json.dumps(circumstances, indent=2) + "\n", TrainingError)


def _put(fresh: Path, run: Path) -> None:
    if run.exists():
        raise TrainingError(f"{run} was made by another process meanwhile; choose another name")
    try:
        fresh.rename(run)
        flush(run.resolve().parent)
    except OSError as error:
        raise TrainingError(f"{run} could not be made: {error.strerror}") from None


def _check_agreement(recipe: Recipe | TranslationRecipe, opened: Corpus | PairSet, ranks: Ranks) -> None:
    ranks.check_same("recipe", recipe.model_dump_json())
    ranks.check_same("data", opened.header.checksums)
    ranks.check_same("version of segue or torch", (segue.__version__, torch.__version__))


def _check_shared(run: Path) -> None:
    if not (run / "run.json").is_file():
        raise TrainingError(f"{run} is not here; the folder of a run must be one that all machines share")


def _opened(recipe: Recipe | TranslationRecipe, data: Path | str) -> Corpus | PairSet:
    return open_corpus(data) if isinstance(recipe, Recipe) else open_pairs(data)


def _task(
    recipe: Recipe | TranslationRecipe, opened: Corpus | PairSet, device: str, ranks: Ranks
) -> LanguageTask | TranslationTask:
    place = torch.device(local_device(device))
    if place.type == "cuda":
        torch.cuda.set_device(place)  # what travels between GPUs asks for the current one
    if isinstance(recipe, Recipe):
        assert isinstance(opened, Corpus)
        return LanguageTask(recipe, opened, place, ranks)
    assert isinstance(opened, PairSet)
    return TranslationTask(recipe, opened, place, ranks)


def resume(
    run: Path | str,
    *,
    changes: Sequence[str] = (),
    extend: Extension | None = None,
    data: Path | str | None = None,
    device: str | None = None,
    watch: Watch = unwatched,
    interrupted: Callable[[], bool] = lambda: False,
) -> Path:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped.

    `extend` says what becomes of the learning rate if `changes` add steps to a schedule that had an end.
    """
    run = Path(run)
    with process_group() as ranks:

        def opened_again() -> tuple[Extended, Corpus | PairSet]:
            extension = extended(run, changes, extend)
            opened = _opened(extension.recipe, data or told()["data"])
            if opened.header.checksums != told()["checksums"]:
                raise TrainingError(
                    f"{opened.folder} is not the corpus that {run} was trained on; give that one with --data"
                )
            check_dealt(extension.recipe, ranks.world_size)
            return extension, opened

        def told() -> dict[str, Any]:
            return read_json(run / "run.json")

        (recipe, notes, trunk), opened = ranks.on_every_rank(opened_again)
        _check_agreement(recipe, opened, ranks)
        newest = [folder.name for folder in checkpoints(run)[-1:]]
        ranks.check_same("newest checkpoint (is the folder shared?)", newest)
        device = device or str(told()["device"])
        with _alone(run, ranks):
            if trunk is not None:
                ranks.from_rank_zero(partial(back_to, run, trunk))
            task = _task(recipe, opened, device, ranks)
            warnings: list[str] = []
            if checkpoints(run):
                state = load_state(run, task.fresh, warnings, ranks)
            else:  # it was killed before it could save: begin again
                state = task.fresh()
                warnings.append(f"{run} has no checkpoint yet; beginning again")
            warnings += _changed(told(), _circumstances(opened, device, ranks))
            if ranks.first:
                for kind, texts in (("warning", warnings), ("note", notes)):
                    for text in texts:
                        watch(Event(kind, state.counters.step, {"text": text}))
            ranks.from_rank_zero(lambda: write_whole(run / "recipe.toml", recipe_toml(recipe), TrainingError))
            _watched(Training(recipe.train, run, task, state, interrupted, ranks), watch)
    return run


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What will show in the last bits."""
    differ = "the last bits will differ from an uninterrupted run"
    changes = []
    for name in ("threads", "ranks"):
        if now[name] != before.get(name, 1):
            changes.append(f"{now[name]} {name} now and {before.get(name, 1)} before: {differ}")
    for name in ("device", "torch", "machine", "processor"):
        if name in before and now[name] != before[name]:
            changes.append(f"{name} {now[name]} now and {before[name]} before: {differ}")
    return changes


def _watched(training: Training, watch: Watch) -> None:
    if not training.ranks.first:
        for _ in training.events():
            pass
        return

    def report(task: str, done: int, total: int) -> None:
        watch(Event("progress", training.state.counters.step, {"task": task, "done": done, "total": total}))

    training.report = report
    with Log(training.run, training.state.counters.step) as log:
        for event in training.events():
            log.write(event)
            watch(event)


def _circumstances(opened: Corpus | PairSet, device: str, ranks: Ranks) -> dict[str, Any]:
    return {
        "segue": segue.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "ranks": ranks.world_size,
        "launch": launch_id(),
        "device": device,
        "data": str(opened.folder.absolute()),
        "checksums": opened.header.checksums,
    }


def read_log(run: Path) -> list[dict[str, Any]]:
    """The events of a run, in order."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
