"""Training that is killed at random moments and resumed ends with the very bytes of training that was not."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import segue
from cases import small_corpus
from children import ended, run, started
from segue.checkpoint import CHECKPOINTS, checkpoints
from segue.recipe import Recipe, TranslationRecipe, recipe_of, recipe_toml
from segue.text.pairs import PairsConfig, open_pairs, prepare_pairs
from tally import Tally

STEPS = 12
SHAPE = {"vocab": 256, "width": 8, "layers": 2, "heads": 2, "feedforward": 8, "dropout": 0.1}
CELLS = {"kind": "recurrent", "vocab": 256, "width": 8, "layers": 2, "dropout": 0.1}

MODELS: dict[str, dict[str, object]] = {
    "xl": SHAPE,
    "xl, adaptive softmax": {**SHAPE, "cutoffs": [64, 128], "divisor": 2},
    "shaw": {**SHAPE, "encoding": "shaw", "max_distance": 9},
    "sinusoidal": {**SHAPE, "encoding": "sinusoidal"},
    "no positions": {**SHAPE, "encoding": "none"},
    "LSTM": {**CELLS, "cell": "lstm"},
    "GRU": {**CELLS, "cell": "gru"},
    "RNN": {**CELLS, "cell": "rnn"},
}
TRANSLATORS: dict[str, dict[str, object]] = {
    "encoder-decoder": {
        "kind": "seq2seq",
        "width": 8,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "feedforward": 8,
    },
    "RNN encoder-decoder": {"kind": "recurrent-seq2seq", "width": 8, "layers": 1, "cell": "gru"},
}
OPTIMIZERS = ("adam", "adamw", "muon")
CHANGES = (
    {},
    {"accumulate": 2},
    {"validate_every": 5, "validate_tokens": 50},
    {"keep": 1},
    {"save_every": 3},
)


def kinds(folder: Path) -> list[tuple[str, Recipe | TranslationRecipe, Path]]:
    """Every model with every optimizer, with a name and the data that it learns from."""
    folder.mkdir(parents=True)
    corpus, pairs = small_corpus(folder, 2000), small_pairs(folder)
    found: list[tuple[str, Recipe | TranslationRecipe, Path]] = []
    for number, (name, model) in enumerate((*MODELS.items(), *TRANSLATORS.items())):
        for place, optimizer in enumerate(OPTIMIZERS):
            change = CHANGES[(number + place) % len(CHANGES)]
            train = {
                "steps": STEPS,
                "learning_rate": 1e-2,
                "warmup": 3,
                "save_every": 1,
                "optimizer": optimizer,
                **change,
            }
            recipe, data = _recipe(model, train, pairs), pairs if name in TRANSLATORS else corpus
            found.append((f"{name}, {optimizer}", recipe, data))
    return found


def _recipe(model: dict[str, object], train: dict[str, object], pairs: Path) -> Recipe | TranslationRecipe:
    if "vocab" not in model:
        train = {name: value for name, value in train.items() if name != "validate_tokens"}
        model = {**model, "vocab": open_pairs(pairs).header.vocab}
        return recipe_of({"model": model, "train": {**train, "tokens": 60}, "translating": {"longest": 10}})
    train = {"lanes": 4, "segment": 5, "memory": 6, **train}
    return recipe_of({"model": model, "train": train, "reading": {"segment": 5, "reach": {"memory": 6}}})


def small_pairs(folder: Path) -> Path:
    lines = [f"{number} {number * 7 % 13}".encode() for number in range(60)]
    parts = {
        "train": lambda: ((line, line[::-1]) for line in lines[:50]),
        "valid": lambda: ((line, line[::-1]) for line in lines[50:]),
    }
    prepare_pairs(parts, folder / "pairs", PairsConfig(size=260), lambda *_: None)
    return folder / "pairs"


def attack(folder: Path, kills: int, seed: int) -> Tally:
    """Kill forked training until it was killed so often, each run until it is done."""
    tally, draw = Tally("training killed at a random microsecond (forks)"), random.Random(seed)
    known = kinds(folder / "data")
    for name, recipe, data in known[:3]:  # what optimizers import late, children find imported
        segue.train(recipe, data, folder / "warm" / name)
    draw.shuffle(known)
    number = 0
    while tally.outcomes["killed"] < kills:
        name, recipe, data = known[number % len(known)]
        number += 1
        wrong = _run(folder, name, recipe, data, draw, tally)
        if wrong:
            tally.lose(f"{name}: {wrong}")
        else:
            tally.count("runs that ended with the same bytes")
    return tally


def _run(
    folder: Path,
    name: str,
    recipe: Recipe | TranslationRecipe,
    data: Path,
    draw: random.Random,
    tally: Tally,
) -> str:
    """Kill one run until it ends by itself: how it differs from an undisturbed one, which is made once."""
    said, place, whole = folder / "said", folder / "run", folder / "whole" / name
    shutil.rmtree(place, ignore_errors=True)
    if not whole.exists():
        begin = time.monotonic()
        first = run(partial(segue.train, recipe, data, whole), said)
        if first.code:
            return f"fails undisturbed: {first.said[-300:]}"
        LONGEST[name] = time.monotonic() - begin
    while True:
        do: Callable[[], object] = (
            partial(segue.resume, place) if place.exists() else partial(segue.train, recipe, data, place)
        )
        child = started(do, said)
        time.sleep(draw.random() * LONGEST[name])
        os.kill(child, signal.SIGKILL)
        found = ended(child, said)
        if found.code == 0:
            return difference(place, whole)
        if found.code != -9:
            return f"ended with {found.code}: {found.said[-300:]}"
        tally.count("killed")


LONGEST: dict[str, float] = {}
"""Seconds that each kind of run takes undisturbed."""


def difference(ours: Path, theirs: Path) -> str:
    """What differs between the newest checkpoints of two runs, byte by byte; and what should not be there."""
    for name in ("model.safetensors", "training.safetensors"):
        if (checkpoints(ours)[-1] / name).read_bytes() != (checkpoints(theirs)[-1] / name).read_bytes():
            return f"{name} differs from that of an undisturbed run"
    kept, wanted = ([folder.name for folder in (run / CHECKPOINTS).iterdir()] for run in (ours, theirs))
    return "" if sorted(kept) == sorted(wanted) else f"keeps {sorted(kept)} and not {sorted(wanted)}"


def attack_processes(folder: Path, kills: int, seed: int) -> Tally:
    """The same with real processes, started by their command line."""
    tally, draw = Tally("training killed at a random moment (real processes)"), random.Random(seed)
    folder.mkdir(parents=True)
    corpus = small_corpus(folder, 2000)
    recipe = _recipe(SHAPE, {"steps": 20 * kills, "learning_rate": 1e-2, "save_every": 1}, corpus)
    (folder / "recipe.toml").write_text(recipe_toml(recipe))
    begin = ["train", folder / "recipe.toml", "--data", corpus]
    assert run(partial(segue.train, recipe, corpus, folder / "whole"), folder / "said").code == 0
    for number in range(kills + 1):
        there = (folder / "run").exists()
        words = ["train", "--resume", folder / "run"] if there else [*begin, "-o", folder / "run"]
        command = [sys.executable, "-m", "segue", *map(str, words), "--threads", "1"]
        with (
            (folder / "said").open("w") as said,
            subprocess.Popen(command, stdout=said, stderr=said) as process,
        ):
            if number < kills:
                _wait_for_steps(folder / "run", process, draw)
                process.kill()
        if process.returncode == -9:
            tally.count("killed")
        elif process.returncode:
            tally.lose(f"ended with {process.returncode}: {(folder / 'said').read_text()[-300:]}")
    wrong = difference(folder / "run", folder / "whole")
    if wrong:
        tally.lose(wrong)
    else:
        tally.count("runs that ended with the same bytes")
    return tally


def _wait_for_steps(run: Path, process: "subprocess.Popen[bytes]", draw: random.Random) -> None:
    """Until it has saved something new, and a moment more."""
    before = [folder.name for folder in checkpoints(run)]
    while process.poll() is None and [folder.name for folder in checkpoints(run)] == before:
        time.sleep(0.002)
    time.sleep(draw.random() * 0.1)
