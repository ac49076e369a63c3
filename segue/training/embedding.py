"""Pretrained word vectors as a model's input embedding."""

from torch import nn

from segue.errors import TrainingError
from segue.interop.vectors import Vectors
from segue.nn.vocab import Vocabulary
from segue.recipe import Schedule
from segue.text.tokenizer import Tokenizer


def input_embedding(model: nn.Module) -> Vocabulary:
    """The vocabulary whose embedding reads the input: of a translator, the source's."""
    apart = (getattr(model, name, None) for name in ("source_vocabulary", "input_vocabulary"))
    vocabulary = next(filter(None, apart), model.vocabulary)
    assert isinstance(vocabulary, Vocabulary)
    return vocabulary


def freeze(model: nn.Module, train: Schedule) -> None:
    """Take the input embedding out of training if the recipe says `train.frozen`."""
    for table in input_embedding(model).tables if train.frozen else ():
        table.requires_grad_(False)


def initialize_embedding(model: nn.Module, vectors: Vectors, tokenizer: Tokenizer) -> int:
    """Set the embedding of each symbol that is a word in `vectors`; returns the number of these symbols."""
    vocabulary = input_embedding(model)
    if len(vocabulary.tables) > 1:
        raise TrainingError(
            "word vectors need an embedding of one width for all symbols; use model.divisor=1"
        )
    texts = [tokenizer.decode([token]).decode(errors="replace").strip() for token in range(tokenizer.size)]
    table = vocabulary.tables[0]
    rows, matched = vectors.fitted(table, texts)
    table.data.copy_(rows)
    return matched
