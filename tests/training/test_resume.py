"""A run that was interrupted ends with the very weights of one that was not, to the last bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import segue
from runs import make_corpus, small_recipe
from segue.checkpoint import checkpoints
from segue.errors import SegueError
from segue.recipe import Recipe, recipe_toml
from segue.training.loop import Event
from segue.training.run import read_log


def final_weights(run: Path) -> bytes:
    return (checkpoints(run)[-1] / "model.safetensors").read_bytes()


def copy_until(run: Path, target: Path, step: int) -> Path:
    """The run as it would be if it had been killed right after saving this step."""
    shutil.copytree(run, target)
    for folder in checkpoints(target):
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
    return target


def test_every_one_of_fifty_steps_across_an_epochs_end(corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(
        steps=60, segment=24, lanes=6, save_every=1, keep=100, optimizer="adamw", weight_decay=0.01
    )
    stream = segue.text.corpus.open_corpus(corpus).stream("train")
    epoch = len(stream.ids) // 6 / 24
    assert 10 < epoch < 50, "an epoch ends in the middle of the fifty"
    whole = segue.train(recipe, corpus, tmp_path / "whole")
    for step in range(5, 55):
        part = copy_until(whole, tmp_path / f"part-{step}", step)
        segue.resume(part, changes=["train.save_every=0"])
        assert final_weights(part) == final_weights(whole), f"resumed after step {step}"
        shutil.rmtree(part)


@pytest.mark.parametrize(
    "changes", [{"optimizer": "muon"}, {"accumulate": 2}, {"documents": False}, {"loss": "half"}]
)
def test_every_kind_of_training_resumes(changes: dict[str, object], corpus: Path, tmp_path: Path) -> None:
    whole = segue.train(small_recipe(save_every=1, keep=99, **changes), corpus, tmp_path / "whole")
    part = copy_until(whole, tmp_path / "part", 5)
    segue.resume(part)
    assert final_weights(part) == final_weights(whole)
    kept = [(event["kind"], event["step"]) for event in read_log(part) if event["kind"] == "step"]
    assert kept == [("step", step) for step in range(1, 13)]


def test_validation_leaves_training_alone(corpus: Path, tmp_path: Path) -> None:
    plain = segue.train(small_recipe(), corpus, tmp_path / "plain")
    watched = segue.train(small_recipe(validate_every=5, validate_tokens=100), corpus, tmp_path / "watched")
    assert final_weights(watched) == final_weights(plain)


def test_a_finished_run_can_be_extended(corpus: Path, tmp_path: Path) -> None:
    short = segue.train(small_recipe(steps=6, schedule="constant"), corpus, tmp_path / "short")
    segue.resume(short, changes=["train.steps=12"])
    long = segue.train(small_recipe(steps=12, schedule="constant"), corpus, tmp_path / "long")
    assert final_weights(short) == final_weights(long)


def test_a_damaged_newest_checkpoint_falls_back_and_says_so(corpus: Path, tmp_path: Path) -> None:
    whole = segue.train(small_recipe(save_every=4, keep=9), corpus, tmp_path / "whole")
    part = copy_until(whole, tmp_path / "part", 8)
    damaged = checkpoints(part)[-1] / "training.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"abc")
    events: list[Event] = []
    segue.resume(part, watch=events.append)
    assert events[0].kind == "warning"
    assert "step-00000008/training.safetensors is not the file that was saved" in events[0].values["text"]
    assert final_weights(part) == final_weights(whole)
    assert sorted(path.name for path in (part / "checkpoints").iterdir())[0] == "damaged-step-00000008"
    segue.load(part)


def test_a_run_stopped_before_its_first_checkpoint_begins_again(corpus: Path, tmp_path: Path) -> None:
    whole = segue.train(small_recipe(), corpus, tmp_path / "whole")
    part = copy_until(whole, tmp_path / "part", 0)
    segue.resume(part)
    assert final_weights(part) == final_weights(whole)


def test_what_cannot_be_resumed_is_refused(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(), corpus, tmp_path / "run")
    other = make_corpus(tmp_path / "other", documents=30)
    cases = {
        "keeps its recipe; only train.steps": {"changes": ["train.learning_rate=0.1"]},
        "keeps its recipe": {"changes": ["model.dropout=0.2"]},
        "has no 'stpes'; did you mean 'steps'": {"changes": ["train.stpes=5"]},
        "is not the data that": {"data": other},
    }
    for match, how in cases.items():
        with pytest.raises(SegueError, match=match):
            segue.resume(run, **how)
    with pytest.raises(SegueError, match="is no run"):
        segue.resume(tmp_path / "nothing")
    with pytest.raises(SegueError, match="exists; go on with --resume"):
        segue.train(small_recipe(), corpus, run)
    for folder in checkpoints(run):
        (folder / "model.safetensors").unlink()
    with pytest.raises(SegueError, match="no undamaged checkpoint"):
        segue.resume(run)


# Real processes, really killed.

THREADS = "1"


def command(*words: object) -> list[str]:
    return [sys.executable, "-c", "from segue.cli import main; main()", *map(str, words)]


def start(*words: object) -> "subprocess.Popen[bytes]":
    words = command("train", *words, "--threads", THREADS)
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def recipe_file(path: Path, recipe: Recipe) -> Path:
    path.write_text(recipe_toml(recipe))
    return path


def wait_for_checkpoint(run: Path, beyond: int, process: "subprocess.Popen[bytes]") -> None:
    """Until the run has saved more checkpoints than before, or is over."""
    while process.poll() is None:
        newest = [int(path.name.removeprefix("step-")) for path in checkpoints(run)]
        if newest and newest[-1] > beyond:
            return
        time.sleep(0.01)


def killed_and_resumed(corpus: Path, folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """Kill a run `kills` times at random moments, resume it each time; how often it was killed, and while saving."""
    draw = random.Random(seed)
    recipe = small_recipe(steps=60 * kills + 20, save_every=1, keep=3)
    file = recipe_file(folder / "recipe.toml", recipe)
    run, done, saving = folder / "run", 0, 0
    process = start(file, "--data", corpus, "-o", run)
    for _ in range(kills):
        before = [int(path.name.removeprefix("step-")) for path in checkpoints(run)] or [0]
        wait_for_checkpoint(run, before[-1] + draw.randrange(25), process)
        time.sleep(draw.random() * 0.03)  # anywhere within a step or a save
        done += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        saving += any(path.name.startswith(".step-") for path in (run / "checkpoints").iterdir())
        process = start("--resume", run)
    assert process.wait() == 0
    return done, saving


def uninterrupted(corpus: Path, folder: Path, kills: int) -> bytes:
    recipe = small_recipe(steps=60 * kills + 20, save_every=1, keep=3)
    threads = torch.get_num_threads()
    torch.set_num_threads(int(THREADS))
    try:
        return final_weights(segue.train(recipe, corpus, folder / "whole"))
    finally:
        torch.set_num_threads(threads)


def test_killed_at_five_random_moments(corpus: Path, tmp_path: Path) -> None:
    done, _ = killed_and_resumed(corpus, tmp_path, kills=5, seed=1)
    assert done == 5
    assert final_weights(tmp_path / "run") == uninterrupted(corpus, tmp_path, kills=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_two_hundred_random_moments(seed: int, corpus: Path, tmp_path: Path) -> None:
    """Twenty kills each; nearly all the time is spent saving, so many of them hit the middle of a save."""
    done, saving = killed_and_resumed(corpus, tmp_path, kills=20, seed=seed)
    assert done == 20
    assert saving > 0
    assert final_weights(tmp_path / "run") == uninterrupted(corpus, tmp_path, kills=20)


def test_sigterm_saves_and_leaves_a_run_that_goes_on(corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(steps=100_000, schedule="constant")
    run = tmp_path / "run"
    process = start(recipe_file(tmp_path / "recipe.toml", recipe), "--data", corpus, "-o", run)
    log = run / "log.jsonl"
    while process.poll() is None and not (log.exists() and '"kind": "step"' in log.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 1
    stopped = int(checkpoints(run)[-1].name.removeprefix("step-"))
    assert 0 < stopped < 100_000
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["reason"]) == ("done", "interrupted")
    again = subprocess.run(
        command("train", "--resume", run, "--set", f"train.steps={stopped + 3}", "--threads", THREADS),
        check=False,
        capture_output=True,
        env=os.environ,
    )
    assert again.returncode == 0
    assert checkpoints(run)[-1].name == f"step-{stopped + 3:08d}"
