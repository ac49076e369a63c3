"""Several ranks train as one process does: the same losses, the same weights, the same files."""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import segue
from ranks import on_ranks, succeeded
from runs import WORDS, make_corpus, small_recipe
from segue.checkpoint import WEIGHTS, checkpoints, read_tensors, verify
from segue.config import Reach, Reading, Seq2SeqConfig, Translating
from segue.distributed import joined
from segue.infer.evaluate import evaluate, silent
from segue.recipe import PairTrainConfig, Recipe, TranslationRecipe
from segue.text.corpus import Stream, open_corpus
from segue.text.pairs import PairsConfig, open_pairs, prepare_pairs
from segue.training.run import read_log
from support import build, shape

STEPS = 50
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("data"))


def make_pairs(parent: Path) -> Path:
    """Sentences of one to four words, and themselves backwards."""
    draw, folder = random.Random(0), parent / "pairs"
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))).encode() for _ in range(150)]
    parts = {
        "train": lambda: ((line, line[::-1]) for line in lines[:130]),
        "valid": lambda: ((line, line[::-1]) for line in lines[130:]),
    }
    prepare_pairs(parts, folder, PairsConfig(size=270), silent)
    return folder


@pytest.fixture
def exact() -> Iterator[None]:
    """Weights in float64, so that only mistakes show; ranks are forks and inherit it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


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


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "train",
    [
        {"optimizer": "adamw", "decay": 0.01, "validate_every": 20, "validate_tokens": 300},
        {"optimizer": "muon", "accumulate": 2, "loss": "half", "clip": 0.05},
    ],
    ids=["adamw", "muon"],
)
def test_ranks_that_share_lanes_train_as_one_process(
    train: dict[str, object], size: int, corpus: Path, tmp_path: Path
) -> None:
    check_equal(*both(plain_recipe(**train), corpus, tmp_path, size))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("size", SIZES)
def test_ranks_that_share_pairs_train_as_one_process(size: int, pairs: Path, tmp_path: Path) -> None:
    check_equal(*both(pair_recipe(pairs), pairs, tmp_path, size))


def pair_recipe(pairs: Path, **train: Any) -> TranslationRecipe:
    """Batches of a few pairs each, some of them with fewer pairs than ranks."""
    vocab = open_pairs(pairs).header.vocab
    values = {"steps": STEPS, "optimizer": "adamw", "rate": 3e-3, "validate_every": 10, "keep": 9, **train}
    return TranslationRecipe(
        model=Seq2SeqConfig(vocab=vocab, width=8, heads=2, inner=16, encoder_layers=1, decoder_layers=1),
        train=PairTrainConfig(tokens=30, accumulate=2, **values),
        translating=Translating(),
    )


def cut_to(run: Path, target: Path, step: int) -> Path:
    """A copy of the run as it was after this step."""
    shutil.copytree(run, target)
    for folder in checkpoints(target):
        if folder.name != f"step-{step:08d}":
            shutil.rmtree(folder)
    return target


@pytest.mark.parametrize("size", SIZES)
def test_the_same_ranks_go_on_to_the_last_bit(size: int, corpus: Path, tmp_path: Path) -> None:
    """With dropout: every rank has random numbers of its own, and they come back."""
    recipe = small_recipe(lanes=8, accumulate=2, steps=12, save_every=5, keep=9)
    succeeded(on_ranks(size, tmp_path, segue.train, recipe, corpus, tmp_path / "whole"))
    part = cut_to(tmp_path / "whole", tmp_path / "part", 5)
    succeeded(on_ranks(size, tmp_path, segue.resume, part))
    files = [(run / "checkpoints/step-00000012" / WEIGHTS).read_bytes() for run in (tmp_path / "whole", part)]
    assert files[0] == files[1]
    rows = [
        read_tensors(tmp_path / f"whole/checkpoints/step-00000005/lanes-{rank:05d}.safetensors")
        for rank in range(size)
    ]
    assert not torch.equal(rows[0]["random/cpu"], rows[1]["random/cpu/1"])


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_a_run_goes_on_with_another_number_of_ranks(
    before: int, after: int, corpus: Path, tmp_path: Path
) -> None:
    """Lanes are dealt again, and memory goes with its lane, wherever chunks are cut."""
    recipe = plain_recipe(accumulate=2, steps=20, save_every=7)

    def on(size: int, work: Callable[..., Any], *values: Any) -> None:
        if size == 1:
            work(*values)
        else:
            succeeded(on_ranks(size, tmp_path, work, *values))

    on(before, segue.train, recipe, corpus, tmp_path / "whole")
    part = cut_to(tmp_path / "whole", tmp_path / "part", 7)
    on(after, partial(segue.resume, part))
    torch.testing.assert_close(weights(part, 20), weights(tmp_path / "whole", 20), rtol=0, atol=1e-9)
    assert segue.load(part).model.config == recipe.model


READINGS = [
    Reading(
        segment=5, reach=Reach(memory=7)
    ),  # seams show: what is read first is memory and segment for each layer
    Reading(segment=4, reach=Reach(memory=9, span=6, clamp=4)),  # they do not: the span for each layer
    Reading(segment=6, reach=Reach(memory=0)),
]


def test_a_stream_that_ranks_share_is_scored_the_same(corpus: Path, tmp_path: Path) -> None:
    model, stream = build(shape(vocab=256)), open_corpus(corpus).stream("train")
    scores = [evaluate(model, stream, reading, limit=700).nats for reading in READINGS]
    assert [reading.overlap(2) for reading in READINGS] == [25, 12, 12]
    succeeded(on_ranks(2, tmp_path, score_shared, model, stream, scores))
    succeeded(on_ranks(3, tmp_path, score_shared, model, stream, scores))


def score_shared(model: segue.TransformerXL, stream: Stream, scores: list[float]) -> None:
    """Ranks of one lane, and of two; with a stream too short for all of them, too."""
    with joined() as ranks:
        for reading, wanted in zip(READINGS, scores, strict=True):
            for lanes in (1, 2):
                found = evaluate(model, stream, reading, lanes=lanes, limit=700, ranks=ranks)
                assert found.nats == pytest.approx(wanted, rel=1e-12)
                assert found.tokens == 700
        few = evaluate(model, stream, READINGS[0], limit=3, ranks=ranks)
        assert few.nats == pytest.approx(evaluate(model, stream, READINGS[0], limit=3).nats, rel=1e-12)
