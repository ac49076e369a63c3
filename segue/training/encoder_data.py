"""The data of an encoder's task: a prepared corpus for masked words."""

from pathlib import Path

from segue.errors import TrainingError
from segue.recipe import EncoderRecipe
from segue.text.corpus import Corpus, open_corpus
from segue.training.encoding import TextSource
from segue.training.masked import MaskedSource


def open_texts(recipe: EncoderRecipe, data: Path | str) -> Corpus:
    """The data that the recipe's task is trained on."""
    if recipe.task.task == "masked":
        return open_corpus(data)
    raise TrainingError(f"there is no data of labelled examples for the task {recipe.task.task!r} yet")


def text_source(recipe: EncoderRecipe, opened: Corpus) -> TextSource:
    """The source of a task's texts."""
    return MaskedSource(recipe, opened)


def check_texts(recipe: EncoderRecipe, opened: Corpus) -> None:
    """Check what would stop the run later: the special symbols, enough text and documents, a validation split."""
    source = MaskedSource(recipe, opened)
    longest = recipe.reading.max_length
    for split in ["train", *["valid"][: recipe.train.validate_every]]:
        if source.pieces.special[opened.stream(split).ids].all():
            raise TrainingError(
                f"{split} of {opened.folder} holds no known piece to mask; prepare other text"
            )
        for length in {recipe.train.length_at(0, longest), longest}:
            source.texts(split, length)  # are there documents enough?
