"""Labelled examples in training: every text once an epoch; the loss of a batch is that of its texts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from encoders import SHAPE, wordpiece
from segue.config import EncoderConfig, EncoderReading, HeadConfig
from segue.errors import SegueError
from segue.nn.task_encoder import TaskEncoder
from segue.progress import silent
from segue.recipe import EncoderRecipe, EncoderTrainConfig
from segue.text.examples import (
    Example,
    ExampleSet,
    ExampleTask,
    LabelledText,
    Question,
    ScoredText,
    TaggedWords,
    open_examples,
    prepare_examples,
)
from segue.training.encoder_data import check_texts
from segue.training.encoder_objective import EncoderObjective
from segue.training.labelled import LabelledSource
from segue.training.state import Counters

WORDS = ("the", "animal", "did", "not", "cross", "untired", "street")
ANSWER = {"text": "the", "answer_start": 0}
MADE: dict[ExampleTask, Any] = {
    "classify": lambda n: LabelledText(texts=(" ".join(WORDS[: 1 + n % 7]),), label="ab"[n % 2]),
    "pairs": lambda n: ScoredText(texts=("the", " ".join(WORDS[: 1 + n % 4])), score=n / 3),
    "tag": lambda n: TaggedWords(words=WORDS[: 1 + n % 7], tags=("O", "B-x", *["O"] * 5)[: 1 + n % 7]),
    "answer": lambda n: Question(
        name=str(n),
        question="animal",
        context=" ".join(WORDS[: 1 + n % 7]),
        answers=(ANSWER,) if n % 3 else (),
    ),
}


def examples(folder: Path, task: ExampleTask, count: int) -> ExampleSet:
    made: list[tuple[str, Example]] = [(str(n), MADE[task](n)) for n in range(count)]
    parts = {"train": lambda: iter(made)}
    prepare_examples(
        parts,
        folder / task,
        task,
        score=task == "pairs",
        vocabulary=lambda _: wordpiece(folder),
        report=silent,
    )
    return open_examples(folder / task)


def source(data: ExampleSet, *, batch: int = 4, max_length: int = 9) -> LabelledSource:
    recipe = EncoderRecipe(
        model=EncoderConfig(**SHAPE, dropout=0.0),
        task=data.header.head,
        train=EncoderTrainConfig(steps=9, batch=batch),
        reading=EncoderReading(max_length=max_length),
    )
    return LabelledSource(recipe, data)


@given(batch=st.integers(1, 15), epochs=st.integers(1, 3))
@settings(max_examples=15)
def test_every_text_is_read_once_in_every_epoch(
    batch: int, epochs: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = source(examples(tmp_path_factory.mktemp("data"), "classify", 13), batch=batch)
    counters, seen = Counters(), []
    for _ in range(epochs * texts.metadata()["steps_per_epoch"]):
        again, _ = LabelledSource(texts.recipe, texts.data).draw(counters)  # as a resumed run does
        drawn, counters = texts.draw(counters)
        assert torch.equal(drawn.input_ids, again.input_ids)
        assert torch.equal(drawn.labels, again.labels)
        seen += drawn.numbers.tolist()
    assert [sorted(seen[n * 13 : (n + 1) * 13]) for n in range(epochs)] == [list(range(13))] * epochs


@pytest.mark.parametrize("task", MADE)
def test_the_loss_of_a_batch_is_that_of_its_texts_alone(task: ExampleTask, tmp_path: Path) -> None:
    texts = source(examples(tmp_path, task, 9))
    torch.manual_seed(0)
    model = TaskEncoder(texts.recipe.model, texts.recipe.task).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
        losses = EncoderObjective(model)(texts.batch(range(len(texts.train)))).nats
        for number in range(len(texts.train)):
            alone = EncoderObjective(model)(texts.batch([number])).nats[0]
            assert_close(losses[number, : len(alone)], alone)
            assert not losses[number, len(alone) :].any()
    assert losses.sum() > 0


def test_scores_begin_at_their_mean(tmp_path: Path) -> None:
    texts = source(examples(tmp_path, "pairs", 9))
    model = TaskEncoder(texts.recipe.model, texts.recipe.task)
    texts.begin(model)
    assert_close(model.head.linear.bias, torch.tensor([4 / 3]))  # type: ignore[union-attr]


def test_long_texts_are_noted(tmp_path: Path) -> None:
    assert source(examples(tmp_path, "pairs", 9)).notes == []
    assert source(examples(tmp_path, "tag", 9)).notes == [
        "texts of more than 9 tokens are read in 4 overlapping windows"
    ]
    assert source(examples(tmp_path, "classify", 9)).notes == ["2 texts have more than 9 tokens and are cut"]


def test_a_recipe_for_another_task_or_other_labels_is_refused(tmp_path: Path) -> None:
    texts = source(examples(tmp_path, "classify", 9))
    other = texts.recipe.model_copy(update={"task": HeadConfig(task="text", labels=("a", "b", "c"))})
    with pytest.raises(SegueError, match="'text' with 3 labels, and .* 'text' with 2 labels"):
        check_texts(other, texts.data)
    validating = texts.recipe.model_copy(update={"train": EncoderTrainConfig(steps=9, validate_every=3)})
    with pytest.raises(SegueError, match="has no split 'valid'"):
        check_texts(validating, texts.data)
    small = texts.recipe.model_copy(update={"model": EncoderConfig(**{**SHAPE, "vocab": 14})})
    with pytest.raises(SegueError, match="the model has 14 symbols and its tokenizer 15"):
        check_texts(small, texts.data)
