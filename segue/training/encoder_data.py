"""The data of an encoder's task: a prepared corpus for masked words, labelled examples for every other task."""

from pathlib import Path

from segue.checkpoint import checkpoints, verify
from segue.errors import SegueError, TrainingError
from segue.recipe import EncoderRecipe
from segue.text.corpus import TOKENIZER, Corpus, open_corpus
from segue.text.examples import ExampleSet, open_examples
from segue.text.wordpiece import read_wordpiece
from segue.training.encoding import TextSource
from segue.training.labelled import LabelledSource
from segue.training.masked import MaskedSource


def open_texts(recipe: EncoderRecipe, data: Path | str) -> Corpus | ExampleSet:
    """The data that the recipe's task is trained on."""
    return open_corpus(data) if recipe.task.task == "masked" else open_examples(data)


def text_source(recipe: EncoderRecipe, opened: Corpus | ExampleSet) -> TextSource:
    """The source of a task's texts."""
    if isinstance(opened, ExampleSet):
        return LabelledSource(recipe, opened)
    return MaskedSource(recipe, opened)


def check_texts(recipe: EncoderRecipe, opened: Corpus | ExampleSet) -> None:
    """Check what would stop the run later: the special symbols, enough text and documents, a validation split."""
    if isinstance(opened, ExampleSet):
        _check_examples(recipe, opened)
        return
    source = MaskedSource(recipe, opened)
    longest = recipe.reading.max_length
    for split in ["train", *["valid"][: recipe.train.validate_every]]:
        if source.pieces.special[opened.stream(split).ids].all():
            raise TrainingError(
                f"{split} of {opened.folder} holds no known piece to mask; prepare other text"
            )
        for length in {recipe.train.length_at(0, longest), longest}:
            source.texts(split, length)  # are there documents enough?


def _check_examples(recipe: EncoderRecipe, opened: ExampleSet) -> None:
    wanted = opened.header.head
    if recipe.task != wanted:
        raise TrainingError(
            f"the recipe's task is {_described(recipe)}, and {opened.folder} holds examples for "
            f"{wanted.task!r} with {len(wanted.labels)} labels; use the preset {opened.header.task}-cpu"
        )
    if opened.tokenizer.size > recipe.model.vocab:
        raise TrainingError(
            f"the model has {recipe.model.vocab:,} symbols and its tokenizer {opened.tokenizer.size:,}; "
            f"use --set model.vocab={opened.tokenizer.size}"
        )
    if recipe.train.validate_every:
        opened.check_split("valid")


def _described(recipe: EncoderRecipe) -> str:
    return f"{recipe.task.task!r} with {len(recipe.task.labels)} labels"


def with_tokenizer_of_run(opened: ExampleSet, run: Path) -> ExampleSet:
    """Examples as the run's own tokenizer cuts them, which it may have taken from another encoder."""
    for folder in reversed(checkpoints(run)):
        try:
            verify(folder)
            return opened.with_tokenizer(read_wordpiece(folder / TOKENIZER))
        except SegueError:
            continue  # damaged: load_state tells about it
    return opened
