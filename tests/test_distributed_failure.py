"""What goes wrong with several ranks: one clear line, no hang, and a run that goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import segue
from ranks import Ended, on_ranks, succeeded
from runs import make_corpus, small_recipe
from segue.checkpoint import WEIGHTS, checkpoints
from segue.cli import main
from segue.distributed import process_group
from segue.errors import SegueError
from segue.recipe import recipe_toml
from segue.training.run import read_log

RECIPE = small_recipe(steps=12, save_every=5, keep=9)


def at_step(step: int, rank: int, sign: int) -> Callable[[], bool]:
    """For `interrupted`, which is asked once in every step: sends one rank a signal instead."""
    asked = 0

    def send() -> bool:
        nonlocal asked
        asked += 1
        if asked == step and os.environ["RANK"] == str(rank) and not restarted():
            os.kill(os.getpid(), sign)
        return False

    return send


def restarted() -> bool:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def train(corpus: Path, run: Path, interrupted: Callable[[], bool]) -> None:
    segue.train(RECIPE, corpus, run, interrupted=interrupted)


def test_a_rank_that_stops_is_named(corpus: Path, tmp_path: Path) -> None:
    ended = on_ranks(
        2, tmp_path, train, corpus, tmp_path / "run", at_step(3, 1, signal.SIGSTOP), SEGUE_RANK_TIMEOUT="1"
    )
    assert ended[0].code == 3
    assert "no answer from rank 1: stopped, killed or cut off; go on with --resume" in ended[0].said


def test_a_rank_that_is_killed_is_named_and_the_run_goes_on(corpus: Path, tmp_path: Path) -> None:
    """As torchrun would start it again; and what was saved last is whole."""
    succeeded(on_ranks(2, tmp_path, segue.train, RECIPE, corpus, tmp_path / "whole"))
    killed = at_step(8, 1, signal.SIGKILL)
    ended = on_ranks(2, tmp_path, train, corpus, tmp_path / "run", killed)
    assert [one.code for one in ended] == [3, -signal.SIGKILL]
    assert "no answer from rank 1" in ended[0].said
    again = on_ranks(2, tmp_path, train, corpus, tmp_path / "run", killed, TORCHELASTIC_RESTART_COUNT="1")
    succeeded(again)
    steps = [event["step"] for event in read_log(tmp_path / "run") if event["kind"] == "step"]
    assert steps == list(range(1, 13))
    assert final_weights(tmp_path / "run") == final_weights(tmp_path / "whole")


def test_the_same_command_goes_on_under_the_name_of_its_launch(corpus: Path, tmp_path: Path) -> None:
    """As where a whole job is started again; another job does not touch the run."""
    (tmp_path / "recipe.toml").write_text(recipe_toml(RECIPE))
    words = ["train", tmp_path / "recipe.toml", "--data", corpus, "-o", tmp_path / "run"]
    for _ in range(2):
        ended = on_ranks(2, tmp_path, command, *words, TORCHELASTIC_RUN_ID="job 7")
        succeeded(ended)
        assert "12 steps in" in ended[0].said
    refused(
        on_ranks(2, tmp_path, command, *words, TORCHELASTIC_RUN_ID="job 8"),
        f"{tmp_path / 'run'} exists; go on with --resume {tmp_path / 'run'}, or choose another name",
    )


def final_weights(run: Path) -> bytes:
    return (checkpoints(run)[-1] / WEIGHTS).read_bytes()


WORKER = """
import sys
sys.path.insert(0, {tests!r})
import torch
from pathlib import Path
from test_distributed_failure import at_step, train
torch.set_num_threads(1)
train(Path(sys.argv[1]), Path(sys.argv[2]), at_step(8, 1, int(sys.argv[3])))
"""


@pytest.mark.slow
def test_torchrun_starts_a_killed_rank_again(corpus: Path, tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER.format(tests=str(Path(__file__).parent)))
    for name, sign in (("whole", 0), ("killed", signal.SIGKILL)):
        done = torchrun("--max-restarts", 1, worker, corpus, tmp_path / name, int(sign))
        assert done.returncode == 0, done.stderr
    assert final_weights(tmp_path / "killed") == final_weights(tmp_path / "whole")


def torchrun(*words: object) -> "subprocess.CompletedProcess[str]":
    """Two ranks on a port that nobody else has."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return subprocess.run(
        [*command, *where, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_the_command_line_under_torchrun(corpus: Path, tmp_path: Path) -> None:
    """Rank 0 speaks, and one process reads what two have written."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_toml(RECIPE))
    done = torchrun("-m", "segue", "train", recipe, "--data", corpus, "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("12 steps in") == 1
    assert segue.load(tmp_path / "run").model.config == RECIPE.model
    words = ["eval", tmp_path / "run", "--json"]
    ended = on_ranks(2, tmp_path, command, *words)
    succeeded(ended)
    shared, alone = json.loads(ended[0].said), json.loads(printed(*words))
    assert shared["nats_per_token"] == pytest.approx(alone["nats_per_token"], rel=1e-5)
    assert (shared["ranks"], shared["overlap"], ended[1].said) == (2, 48, "")
    refused(
        on_ranks(2, tmp_path, command, *words, "--dynamic"),
        "--sliding, --dynamic, --cache and --ngrams run in one process only, not under torchrun",
    )


def printed(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "segue", *map(str, words)], check=True, capture_output=True, text=True
    )
    return done.stdout


def command(*words: object, differs: str = "") -> None:
    """The command line on every rank; rank 1 gets other words for those that differ."""
    told = [str(word) for word in words]
    if os.environ["RANK"] == "1" and differs:
        told += differs.split()
    sys.argv = ["segue", *told]
    main()


def refused(ended: list[Ended], line: str) -> None:
    """One clear line from rank 0, nothing from the others, and 1 from all."""
    assert [one.code for one in ended] == [1] * len(ended), ended[0].said
    assert [one.said.strip() for one in ended] == [f"segue: {line}"] + [""] * (len(ended) - 1)


def test_what_ranks_cannot_do_is_refused_in_one_line(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(recipe_toml(RECIPE))
    words = ["train", tmp_path / "recipe.toml", "--data", corpus, "-o", tmp_path / "run"]
    refused(
        on_ranks(3, tmp_path, command, *words),
        "4 lanes cannot be divided among 3 ranks; start 2 or 4 ranks, or use --set train.lanes=6",
    )
    same = "than rank 0; start all of them with the same"
    refused(
        on_ranks(2, tmp_path, differing, words, "--set train.learning_rate=0.5"),
        f"rank 1 has another recipe {same}",
    )
    other = make_corpus(tmp_path / "other", documents=30)
    refused(on_ranks(2, tmp_path, differing, words, f"--data {other}"), f"rank 1 has another data {same}")
    ended = on_ranks(2, tmp_path, differing, words, f"--data {tmp_path / 'nothing'}")
    assert ended[0].said.startswith("segue: rank 1: ")
    assert ended[1].said == ""
    assert not (tmp_path / "run").exists()


def differing(words: list[object], differs: str) -> None:
    command(*words, differs=differs)


def test_ranks_that_see_other_checkpoints_are_refused(corpus: Path, tmp_path: Path) -> None:
    """As where the folder of a run is not shared."""
    for name, steps in (("0", 5), ("1", 10)):
        segue.train(
            small_recipe(steps=steps, save_every=5, schedule="constant"), corpus, tmp_path / name / "run"
        )
    ended = on_ranks(2, tmp_path, resume_own, tmp_path)
    assert "rank 1 has another recipe" in ended[0].said
    segue.resume(tmp_path / "0" / "run", changes=["train.steps=10", "train.save_every=0", "train.keep=1"])
    segue.resume(tmp_path / "1" / "run", changes=["train.save_every=0", "train.keep=1"])
    (tmp_path / "1/run/checkpoints/step-00000010").rename(tmp_path / "1/run/checkpoints/step-00000008")
    ended = on_ranks(2, tmp_path, resume_own, tmp_path)
    assert "rank 1 has another newest checkpoint" in ended[0].said


def resume_own(folder: Path) -> None:
    segue.resume(folder / os.environ["RANK"] / "run")


def test_an_incomplete_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(SegueError, match="RANK, MASTER_ADDR, MASTER_PORT .* start them with: torchrun"),
        process_group(),
    ):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for name, value in (("RANK", "zero"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
            monkeypatch.setenv(name, value)
        with pytest.raises(SegueError, match="RANK should be a number; found 'zero'"), process_group():
            pass
        monkeypatch.setenv("RANK", "0")
        with (
            pytest.raises(SegueError, match=f"port {port} of 127.0.0.1 is in use; choose another"),
            process_group(),
        ):
            pass
        monkeypatch.setenv("SEGUE_RANK_TIMEOUT", "soon")
        with (
            pytest.raises(SegueError, match="SEGUE_RANK_TIMEOUT should be a number of seconds"),
            process_group(),
        ):
            pass
