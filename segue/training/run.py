"""A run on disk: start it, resume it, extend it.

recipe.toml    all settings of the run
run.json       versions, data, threads, device
log.jsonl      a line for every event
checkpoints/   bundles with the state of training
"""

import json
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
import torch

import segue
from segue.checkpoint import CHECKPOINTS, Bundle, TextEncoder, Translator, checkpoints, read_json
from segue.distributed import Ranks, process_group
from segue.errors import InputError, TrainingError
from segue.files import beside, flush, locked, write_atomically
from segue.interop.vectors import Vectors
from segue.launch import launch_id, local_device, processor, restart_count
from segue.recipe import AnyRecipe, EncoderRecipe, Extension, Recipe, recipe_toml
from segue.text.corpus import Corpus, open_corpus
from segue.text.examples import ExampleSet
from segue.text.pairs import PairSet, open_pairs
from segue.training.checks import Data, check_compatible, check_feasible, check_lanes_divide
from segue.training.embedding import initialize_embedding
from segue.training.encoder_data import open_texts, text_source, with_tokenizer_of_run
from segue.training.encoding import EncodingTask, begin_note
from segue.training.extend import Extended, extended, set_aside_after
from segue.training.language import LanguageTask
from segue.training.log import Log
from segue.training.loop import Event, Training
from segue.training.state import State, load_state, save_state
from segue.training.translation import TranslationTask

Watch = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """Ignore the event."""


def train(
    recipe: AnyRecipe,
    data: Path | str,
    run: Path | str,
    *,
    begin_with: Bundle | Translator | TextEncoder | None = None,
    vectors: Vectors | None = None,
    device: str = "cpu",
    watch: Watch = unwatched,
    interrupted: Callable[[], bool] = lambda: False,
) -> Path:
    """Train a model and save it in the folder `run`, which is returned and which `segue.load` reads.

    A language model learns from a corpus, a translator (`segue.load_translator`) from pairs, an encoder
    (`segue.load_encoder`) from a corpus too. `begin_with` is a bundle to fine-tune. `vectors` are pretrained word
    vectors for the input embedding; `train.frozen` keeps them unchanged. Under torchrun every rank calls this; if
    torchrun restarts the ranks, the run is resumed.
    """
    run = Path(run)
    with process_group() as ranks:
        if ranks.from_rank_zero(lambda: _is_restart(run)):
            return resume(run, data=data, device=device, watch=watch, interrupted=interrupted)

        def checked() -> Data:
            opened = _open_data(recipe, data)
            if isinstance(opened, ExampleSet) and isinstance(begin_with, TextEncoder):
                opened = opened.with_tokenizer(begin_with.tokenizer)
            check_compatible(recipe, opened, begin_with)
            check_feasible(recipe, opened, device)
            check_lanes_divide(recipe, ranks.world_size)
            return opened

        opened = ranks.on_every_rank(checked)
        _check_ranks_agree(recipe, opened, ranks)
        task = _build_task(recipe, opened, device, ranks)
        state = task.fresh(None if begin_with is None else begin_with.model)
        notes = []
        if isinstance(begin_with, TextEncoder) and isinstance(recipe, EncoderRecipe):
            notes.append(begin_note(begin_with.model, recipe))
        if isinstance(task, EncodingTask):
            notes += task.source.notes
        if vectors is not None:
            notes.append(_embed_vectors(ranks, state, vectors, opened))
        fresh = ranks.from_rank_zero(lambda: _make_folder(run))
        with _run_lock(fresh, ranks):
            ranks.from_rank_zero(lambda: _describe(fresh, recipe, _environment(opened, device, ranks)))
            ranks.on_every_rank(lambda: _check_folder_is_shared(fresh))
            if begin_with or vectors:
                # a run that is killed before its first checkpoint must not start again from fresh weights
                save_state(fresh, state, recipe.train, task.write, ranks)
                ranks.wait_for_save()
            ranks.from_rank_zero(lambda: _move_into_place(fresh, run))
            _run_to_end(Training(recipe.train, run, task, state, interrupted, ranks), watch, notes)
    return run


@contextmanager
def _run_lock(run: Path, ranks: Ranks) -> Iterator[None]:
    """Lock the run's folder, on rank 0 for all ranks."""
    with ExitStack() as stack:
        ranks.from_rank_zero(lambda: stack.enter_context(locked(run, TrainingError)))
        yield


def _embed_vectors(ranks: Ranks, state: State, vectors: Vectors, opened: Data) -> str:
    """Initialise the embedding with word vectors; returns a note that says for how many symbols."""
    if isinstance(opened, ExampleSet):
        raise TrainingError(
            "word vectors are for models that read words; an encoder begins with --from ENCODER"
        )
    tokenizer = opened.source if isinstance(opened, PairSet) else opened.tokenizer
    matched = ranks.on_every_rank(lambda: initialize_embedding(state.model, vectors, tokenizer))
    return f"{matched:,} of {tokenizer.size:,} symbols begin as one of the {len(vectors.words):,} vectors"


def _is_restart(run: Path) -> bool:
    """Whether torchrun has restarted the ranks that started this run. Raises if the run is somebody else's."""
    if not run.exists():
        return False
    restarted = (run / "run.json").is_file() and (
        restart_count() or (launch_id() and read_json(run / "run.json").get("launch") == launch_id())
    )
    if not restarted:
        raise TrainingError(f"{run} exists; go on with --resume {run}, or choose another name")
    return True


def _make_folder(run: Path) -> Path:
    """Make the folder of a new run, under a temporary name until it is complete."""
    fresh = beside(run.resolve(), "new")
    try:
        fresh.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{run} could not be made: {error.strerror}") from None
    return fresh


def _describe(fresh: Path, recipe: AnyRecipe, environment: dict[str, Any]) -> None:
    """Write recipe.toml and run.json; first remove the checkpoints of a killed attempt."""
    shutil.rmtree(fresh / CHECKPOINTS, ignore_errors=True)
    write_atomically(fresh / "recipe.toml", recipe_toml(recipe), TrainingError)
    write_atomically(fresh / "run.json", json.dumps(environment, indent=2) + "\n", TrainingError)


def _move_into_place(fresh: Path, run: Path) -> None:
    if run.exists():
        raise TrainingError(f"{run} was made by another process meanwhile; choose another name")
    try:
        fresh.rename(run)
        flush(run.resolve().parent)
    except OSError as error:
        raise TrainingError(f"{run} could not be made: {error.strerror}") from None


def _check_ranks_agree(recipe: AnyRecipe, opened: Data, ranks: Ranks) -> None:
    ranks.check_same("recipe", recipe.model_dump_json())
    ranks.check_same("data", opened.header.checksums)
    ranks.check_same("version of segue or torch", (segue.__version__, torch.__version__))


def _check_folder_is_shared(run: Path) -> None:
    if not (run / "run.json").is_file():
        raise TrainingError(f"{run} is not on this machine; all machines must share the folder of a run")


def _open_data(recipe: AnyRecipe, data: Path | str) -> Data:
    if isinstance(recipe, EncoderRecipe):
        return open_texts(recipe, data)
    return open_corpus(data) if isinstance(recipe, Recipe) else open_pairs(data)


def _build_task(
    recipe: AnyRecipe, opened: Data, device: str, ranks: Ranks
) -> LanguageTask | TranslationTask | EncodingTask:
    own_device = torch.device(local_device(device))
    if own_device.type == "cuda":
        torch.cuda.set_device(own_device)  # nccl uses the current device
    if isinstance(recipe, EncoderRecipe):
        assert isinstance(opened, Corpus | ExampleSet)
        return EncodingTask(recipe, text_source(recipe, opened), own_device, ranks)
    if isinstance(recipe, Recipe):
        assert isinstance(opened, Corpus)
        return LanguageTask(recipe, opened, own_device, ranks)
    assert isinstance(opened, PairSet)
    return TranslationTask(recipe, opened, own_device, ranks)


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
    """Resume a run from its newest undamaged checkpoint, as if it had never stopped.

    `extend` says how the learning rate continues if `changes` add steps to a schedule that depends on their number.
    """
    run = Path(run)
    with process_group() as ranks:

        def open_again() -> tuple[Extended, Data]:
            extension = extended(run, changes, extend)
            opened = _open_data(extension.recipe, data or run_json()["data"])
            if isinstance(opened, ExampleSet):
                opened = with_tokenizer_of_run(opened, run)
            if opened.header.checksums != run_json()["checksums"]:
                raise TrainingError(
                    f"{opened.folder} is not the data that {run} was trained on; give that with --data"
                )
            check_lanes_divide(extension.recipe, ranks.world_size)
            return extension, opened

        def run_json() -> dict[str, Any]:
            return read_json(run / "run.json")

        (recipe, notes, trunk), opened = ranks.on_every_rank(open_again)
        _check_ranks_agree(recipe, opened, ranks)
        newest = [folder.name for folder in checkpoints(run)[-1:]]
        ranks.check_same("newest checkpoint (is the folder shared?)", newest)
        device = device or str(run_json()["device"])
        with _run_lock(run, ranks):
            if trunk is not None:
                ranks.from_rank_zero(partial(set_aside_after, run, trunk))
            task = _build_task(recipe, opened, device, ranks)
            warnings: list[str] = []
            if checkpoints(run):
                state = load_state(run, task.fresh, warnings, ranks)
            else:  # it was killed before its first save
                state = task.fresh()
                warnings.append(f"{run} has no checkpoint yet; starting from the beginning")
            warnings += _environment_warnings(run_json(), _environment(opened, device, ranks))
            if ranks.first:
                for kind, texts in (("warning", warnings), ("note", notes)):
                    for text in texts:
                        watch(Event(kind, state.counters.step, {"text": text}))
            ranks.from_rank_zero(
                lambda: write_atomically(run / "recipe.toml", recipe_toml(recipe), TrainingError)
            )
            _run_to_end(Training(recipe.train, run, task, state, interrupted, ranks), watch)
    return run


def _environment_warnings(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Warnings about changes that alter the last bits of what is computed."""
    differ = "the last bits will differ from an uninterrupted run"
    changes = []
    for name in ("threads", "ranks"):
        if now[name] != before.get(name, 1):
            changes.append(f"{now[name]} {name} now and {before.get(name, 1)} before: {differ}")
    for name in ("device", "torch", "machine", "processor"):
        if name in before and now[name] != before[name]:
            changes.append(f"{name} {now[name]} now and {before[name]} before: {differ}")
    return changes


def _run_to_end(training: Training, watch: Watch, notes: Sequence[str] = ()) -> None:
    """Train. Rank 0 writes the log, the notes first, and passes the events on."""
    if not training.ranks.first:
        for _ in training.events():
            pass
        return

    def report(task: str, done: int, total: int) -> None:
        watch(Event("progress", training.state.counters.step, {"task": task, "done": done, "total": total}))

    training.report = report
    with Log(training.run, training.state.counters.step) as log:
        first = (Event("note", training.state.counters.step, {"text": text}) for text in notes)
        for event in chain(first, training.events()):
            log.write(event)
            watch(event)


def _environment(opened: Data, device: str, ranks: Ranks) -> dict[str, Any]:
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
    path = run / "log.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise InputError(f"{run} has no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
