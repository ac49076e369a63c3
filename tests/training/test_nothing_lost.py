"""What would lose a run or the user's trust in it: full disks, two processes, pruning while others read."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import segue
from runs import small_recipe
from segue import checkpoint
from segue.checkpoint import CHECKPOINTS, average, best_checkpoint, checkpoint_path, checkpoints, step_of
from segue.errors import BundleError, SegueError
from segue.files import locked
from segue.interop.vectors import Vectors
from segue.training.log import Log
from segue.training.loop import Event, Validation
from segue.training.run import read_log

VALIDATE = "segue.training.language.LanguageTask.validate"


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(segue.load(path).model.state_dict())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_fine_tuned_run_reads_with_the_weights_it_learned(corpus: Path, tmp_path: Path) -> None:
    first = segue.train(small_recipe(), corpus, tmp_path / "first")
    tuned = segue.train(small_recipe(seed=1), corpus, tmp_path / "tuned", begin_with=segue.load(first))
    assert best_checkpoint(tuned) == checkpoint_path(tuned, 12)
    assert same(weights(tuned), weights(checkpoint_path(tuned, 12)))
    assert not same(weights(tuned), weights(first))


def test_vectors_do_not_hide_what_was_learned(corpus: Path, tmp_path: Path) -> None:
    vectors = Vectors(("a", "b"), torch.arange(16.0).view(2, 8))
    run = segue.train(small_recipe(), corpus, tmp_path / "run", vectors=vectors)
    assert best_checkpoint(run) == checkpoint_path(run, 12)


def test_the_mean_is_of_the_newest_and_not_of_an_old_best(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([3.0, 1.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(VALIDATE, lambda *_: Validation(next(results), 9, {}))
    run = segue.train(small_recipe(steps=5, validate_every=1, save_every=1), corpus, tmp_path / "run")
    assert [step_of(folder) for folder in checkpoints(run)] == [2, 4, 5]
    with pytest.raises(BundleError, match="keeps 2 of its newest checkpoints and 3 were asked for"):
        average(run, 3)
    average(run, 2)


def test_a_full_disk_while_resuming_leaves_the_run_as_it_was(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = segue.train(small_recipe(steps=6, schedule="constant"), corpus, tmp_path / "run")
    log = (run / "log.jsonl").read_text()
    (run / "log.jsonl").write_text(log + '{"kind": "step", "step": 7}\n')  # of a sitting that did not last
    before = {file: file.read_bytes() for file in sorted(run.glob("*.*"))}
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full_disk)
            with pytest.raises(SegueError, match="No space left on device"):
                segue.resume(run, changes=["train.steps=9"])
        assert {file: file.read_bytes() for file in sorted(run.glob("*.*"))} == before
    segue.resume(run, changes=["train.steps=9"])
    assert [event["step"] for event in read_log(run) if event["kind"] == "step"] == list(range(1, 10))


def test_a_log_on_a_full_disk_is_one_line(tmp_path: Path) -> None:
    def written() -> None:
        with Log(tmp_path, 0) as log:
            log._file.close()
            log._file = Path("/dev/full").open("w")  # noqa: SIM115
            log.write(Event("saved", 1, {}))

    with pytest.raises(SegueError, match="log.jsonl could not be written: No space left on device"):
        written()


def test_a_run_that_is_being_written_is_not_resumed_by_another(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(), corpus, tmp_path / "run")
    before = sorted(file for file in run.rglob("*") if file.is_file())
    with locked(run, BundleError), pytest.raises(SegueError, match=f"is in use by process {os.getpid()} on "):
        segue.resume(run)
    assert sorted(file for file in run.rglob("*") if file.is_file()) == before

    def resume_again(event: Event) -> None:
        if event.kind == "begin":
            with pytest.raises(SegueError, match="is in use by process"):
                segue.resume(tmp_path / "other")

    segue.train(small_recipe(), corpus, tmp_path / "other", watch=resume_again)


def test_a_run_is_read_while_it_prunes_its_checkpoints(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = segue.train(small_recipe(save_every=1, keep=9), corpus, tmp_path / "run")
    for old in checkpoints(run)[:-2]:
        shutil.rmtree(old)
    hidden = tmp_path / "newer"
    checkpoints(run)[-1].rename(hidden)
    real = checkpoint.verify

    def pruned_meanwhile(folder: Path) -> None:
        if hidden.exists():  # a newer one is saved, and the one that was chosen is removed
            hidden.rename(checkpoint_path(run, 12))
            shutil.rmtree(folder)
        real(folder)

    monkeypatch.setattr(checkpoint.bundles, "verify", pruned_meanwhile)
    assert same(weights(run), weights(checkpoint_path(run, 12)))


def test_a_killed_beginning_leaves_nothing_that_hinders(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the run has its place, there is no run: it begins again, and never from nothing."""
    begin_with = segue.load(segue.train(small_recipe(), corpus, tmp_path / "first"))

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    for name in ("_describe", "save_state", "_move_into_place"):
        with monkeypatch.context() as patch:
            patch.setattr(segue.training.run, name, killed)
            with pytest.raises(Killed):
                segue.train(small_recipe(), corpus, tmp_path / "run", begin_with=begin_with)
        assert not (tmp_path / "run").exists()
    segue.train(small_recipe(), corpus, tmp_path / "run", begin_with=begin_with)
    assert names(tmp_path) == ["first", "run"]


@pytest.mark.parametrize(
    "why", [{"minutes": 1e-9}, {"patience": 1, "validate_every": 1, "learning_rate": 1e-12}]
)
def test_a_run_that_was_stopped_takes_no_step_more(why: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(steps=50, **why), corpus, tmp_path / "run")
    ended = step_of(checkpoints(run)[-1])
    assert ended < 50
    for _ in range(3):
        segue.resume(run)
        assert step_of(checkpoints(run)[-1]) == ended


def test_a_validation_that_is_no_number_is_never_the_best(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([math.nan, 3.0, math.inf, 2.0, math.nan])
    monkeypatch.setattr(VALIDATE, lambda *_: Validation(next(results), 9, {}))
    run = segue.train(small_recipe(steps=5, validate_every=1, save_every=1), corpus, tmp_path / "run")
    assert step_of(best_checkpoint(run)) == 4


def test_another_amount_of_validation_begins_the_best_anew(corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(steps=4, schedule="constant", validate_every=1, validate_tokens=200)
    run = segue.train(recipe, corpus, tmp_path / "run")
    counters = checkpoints(run)[-1] / "training.json"
    values = json.loads(counters.read_text())
    assert values["best_of"] == 200
    counters.write_text(
        json.dumps({**values, "best": 0.1})
    )  # such as an easy beginning of the split would give
    checkpoint.seal(_unsealed(counters.parent))
    events: list[Event] = []
    segue.resume(run, changes=["train.steps=6", "train.validate_tokens=100"], watch=events.append)
    warnings = [event.values["text"] for event in events if event.kind == "warning"]
    assert warnings == ["the best validation so far read 200 and this one 100: the comparison starts again"]
    assert step_of(best_checkpoint(run)) > 4


def _unsealed(folder: Path) -> Path:
    (folder / "SHA256SUMS").unlink()
    return folder


def test_another_torch_or_processor_is_told(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(steps=2), corpus, tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    facts |= {"torch": "1.0", "processor": "8086"}
    (run / "run.json").write_text(json.dumps(facts))
    events: list[Event] = []
    segue.resume(run, watch=events.append)
    warned = " ".join(event.values["text"] for event in events if event.kind == "warning")
    assert f"torch {torch.__version__} now and 1.0 before" in warned
    assert "now and 8086 before: the last bits will differ" in warned


def test_the_folder_of_checkpoints_has_nothing_else(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(save_every=1, keep=1), corpus, tmp_path / "run")
    assert names(run / CHECKPOINTS) == ["step-00000012"]


def test_a_run_killed_before_it_pruned_prunes_when_it_goes_on(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(save_every=1, keep=1), corpus, tmp_path / "run")
    shutil.copytree(checkpoint_path(run, 12), checkpoint_path(run, 11))
    segue.resume(run)
    assert names(run / CHECKPOINTS) == ["step-00000012"]


@pytest.mark.parametrize("step", ["1e999", "null", '"x"', "[" * 5000])
def test_a_log_with_a_step_that_is_none_is_passed_over(step: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(
        f'{{"kind": "step", "step": {step}}}\n{{"kind": "step", "step": 1}}\n'
    )
    with Log(tmp_path, 1):
        assert [event["step"] for event in read_log(tmp_path)] == [1]
