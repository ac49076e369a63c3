"""Vectors from elsewhere: they enter the embedding, and frozen ones do not move by a bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import segue
from segue.checkpoint import checkpoints, load_translator
from segue.cli import app
from segue.errors import SegueError
from segue.interop.vectors import Vectors
from segue.recipe import Recipe, with_changes
from segue.text.corpus import open_corpus
from segue.training.loop import Event
from tests.runs import make_corpus
from tests.runs import small_recipe as language_recipe
from tests.training.test_translation import make_pairs, small_recipe

SMALL = {"width": 8, "embedding": 3, "heads": 2, "feedforward": 8, "encoder_layers": 1, "decoder_layers": 1}

WORDS = ("one", "two", "seven", "zero")


def told(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    assert done.exit_code == 0, done.exception
    return done.stdout


def vectors(width: int) -> Vectors:
    return Vectors(WORDS, torch.randn(len(WORDS), width, generator=torch.Generator().manual_seed(3)))


def table(model: segue.Seq2Seq) -> Tensor:
    return getattr(model, "source_vocabulary", model.vocabulary).tables[0].detach()


def test_pairs_of_words_train_with_vectors_that_stay(tmp_path: Path) -> None:
    """From the command line: a word's row in the source's embedding is its vector, before and after training."""
    (tmp_path / "train.en").write_text("one two, two\nseven one.\n" * 20)
    (tmp_path / "train.de").write_text("eins zwei, zwei\nsieben eins.\n" * 20)
    (tmp_path / "glove.txt").write_text("two 1 2 3\nseven -1 0.5 2\nzero 1 1 0\n")
    pairs = ["--train", tmp_path / "train.en", tmp_path / "train.de", "--tokenizer", "words", "--separate"]
    small = [f"model.{name}={size}" for name, size in SMALL.items()]
    changes = [*small, "train.steps=3", "train.frozen=true", "train.tokens=64", "train.validate_every=0"]
    told("prepare-pairs", *pairs, "-o", tmp_path / "data")
    told(
        *("train", "multi30k-cpu", "--data", tmp_path / "data", "-o", tmp_path / "run"),
        *("--vectors", tmp_path / "glove.txt", *(word for change in changes for word in ("--set", change))),
    )
    translator = load_translator(tmp_path / "run")
    rows = [table(translator.model)[translator.source.encode(word)[0]] for word in (b"two", b"seven")]
    scales = torch.stack(rows) / torch.tensor([[1, 2, 3], [-1, 0.5, 2]])
    assert scales.std() < 1e-6
    assert translator.model.vocabulary.tables[0].requires_grad
    assert "exact" in told("eval", tmp_path / "run", "--split", "valid")


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "separate"])
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trainable"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_vectors_enter_and_frozen_ones_stay(
    tmp_path: Path, joint: bool, frozen: bool, optimizer: str
) -> None:
    data = make_pairs(tmp_path / "pairs", joint=joint)
    recipe = small_recipe(
        data,
        {"embedding": 6},
        frozen=frozen,
        optimizer=optimizer,
        weight_decay=0.1,
        save_every=5,
        keep=9,
        steps=7,
    )
    events: list[Event] = []
    run = segue.train(recipe, data, tmp_path / "run", vectors=vectors(6), watch=events.append)
    begun, ended = (
        table(load_translator(run / "checkpoints" / name).model)
        for name in ("step-00000000", "step-00000007")
    )
    assert torch.equal(begun, ended) == frozen
    assert events[0].kind == "note"
    assert "of the 4 vectors" in events[0].values["text"]
    source = load_translator(run).source
    place = source.encode(b"one two")[-1]  # the symbol ' two'
    assert source.decode([place]).strip() == b"two"
    wanted = vectors(6).rows[1]
    assert torch.cosine_similarity(begun[place], wanted, dim=0) == pytest.approx(1, abs=1e-6)


def test_a_frozen_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    data = make_pairs(tmp_path / "pairs")
    recipe = small_recipe(data, frozen=True, schedule="constant", steps=6, save_every=3, keep=9)
    whole = segue.train(recipe, data, tmp_path / "whole", vectors=vectors(32))
    values = with_changes(recipe.model_dump(mode="json"), ["train.steps=3"])
    cut = segue.train(type(recipe)(**values), data, tmp_path / "cut", vectors=vectors(32))
    assert checkpoints(cut)[-1].name == "step-00000003"
    segue.resume(cut, changes=["train.steps=6"])
    ours, theirs = (load_translator(run).model.state_dict() for run in (cut, whole))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())


def test_language_models_take_vectors_too(tmp_path: Path) -> None:
    data = make_corpus(tmp_path, tokenizer="words")
    values = language_recipe(frozen=True, steps=3).model_dump(mode="json")
    values["model"]["vocab"] = open_corpus(data).header.vocab
    words = Vectors(("ship", "sea"), torch.eye(2, 8))
    bundle = segue.load(segue.train(Recipe(**values), data, tmp_path / "run", vectors=words))
    places = bundle.tokenizer.encode(b"ship sea")
    rows = bundle.model.vocabulary.tables[0].detach()[places]
    assert torch.count_nonzero(rows) == 2


def test_vectors_of_another_width_are_refused(tmp_path: Path) -> None:
    data = make_pairs(tmp_path / "pairs")
    with pytest.raises(SegueError, match=r"width 5 and the embedding 32; use --set model\.embedding=5"):
        segue.train(small_recipe(data), data, tmp_path / "run", vectors=vectors(5))
    assert not (tmp_path / "run").exists()
