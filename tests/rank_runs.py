"""Runs of one process and of several ranks, and whether they are the same."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import segue
from ranks import on_ranks, succeeded
from runs import small_recipe
from segue.checkpoint import WEIGHTS, checkpoints, read_tensors, verify
from segue.config import Seq2SeqConfig, Translating
from segue.recipe import PairTrainConfig, Recipe, TranslationRecipe, recipe_of
from segue.text.pairs import open_pairs
from segue.training.run import read_log

STEPS = 50
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


def plain_recipe(**train: Any) -> Recipe:
    """Without dropout, which no number of ranks could share out in the same way."""
    recipe = small_recipe(**{"lanes": 8, "steps": STEPS, "save_every": 20, "keep": 9, **train})
    return recipe.model_copy(
        update={"model": recipe.model.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})}
    )


def weights(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step-{step:08d}"
    verify(folder)
    return read_tensors(folder / WEIGHTS)


def check_equal(run: Path, other: Path, *, steps: int = STEPS, tolerance: float = 1e-9) -> None:
    """The same events with the same figures, and the same weights at the end."""
    ours, theirs = (
        [event for event in read_log(place) if event["kind"] in ("step", "valid", "done")]
        for place in (run, other)
    )
    assert [(event["kind"], event["step"]) for event in ours] == [
        (event["kind"], event["step"]) for event in theirs
    ]
    for one, another in zip(ours, theirs, strict=True):
        assert one.get("nats", 0) == pytest.approx(another.get("nats", 0), abs=tolerance)
        assert one.get("reason") == another.get("reason")
    torch.testing.assert_close(weights(run, steps), weights(other, steps), rtol=0, atol=tolerance)


def both(
    recipe: Recipe | TranslationRecipe, data: Path, folder: Path, size: int, **environment: str
) -> tuple[Path, Path]:
    """The run of one process, and that of several ranks."""
    alone = segue.train(recipe, data, folder / "alone")
    succeeded(on_ranks(size, folder, segue.train, recipe, data, folder / "shared", **environment))
    return alone, folder / "shared"


def pair_recipe(pairs: Path, **train: Any) -> TranslationRecipe:
    """Batches of a few pairs each, some of them with fewer pairs than ranks."""
    vocab = open_pairs(pairs).header.vocab
    values = {
        "steps": STEPS,
        "optimizer": "adamw",
        "learning_rate": 3e-3,
        "validate_every": 10,
        "keep": 9,
        **train,
    }
    return TranslationRecipe(
        model=Seq2SeqConfig(
            vocab=vocab, width=8, heads=2, feedforward=16, encoder_layers=1, decoder_layers=1
        ),
        train=PairTrainConfig(tokens=30, accumulate=2, **values),
        translating=Translating(),
    )


def universal(recipe: Recipe | TranslationRecipe) -> Recipe | TranslationRecipe:
    """The same training of a Universal Transformer whose tokens halt, with a ponder cost."""
    kind = "universal" if isinstance(recipe, Recipe) else "universal-seq2seq"
    shape = recipe.model.model_dump(include={"vocab", "width", "heads", "feedforward"})
    model = {"kind": kind, **shape, "steps": 3, "halting": "act", "halt_bias": -0.5}
    values = recipe.model_dump(mode="json")
    return recipe_of({**values, "model": model, "train": {**values["train"], "ponder": 0.1}})


def cut_to(run: Path, target: Path, step: int) -> Path:
    """A copy of the run as it was after this step."""
    shutil.copytree(run, target)
    for folder in checkpoints(target):
        if folder.name != f"step-{step:08d}":
            shutil.rmtree(folder)
    return target
