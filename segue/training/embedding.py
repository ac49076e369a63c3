"""Word vectors from elsewhere as a model's embedding."""

from torch import nn

from segue.errors import TrainingError
from segue.interop.vectors import Vectors
from segue.nn.vocab import Vocabulary
from segue.recipe import Schedule
from segue.text.tokenizer import Tokenizer


def entrance(model: nn.Module) -> Vocabulary:
    """Where tokens become vectors: a translator's source side, which may be its only vocabulary."""
    found = getattr(model, "source_vocabulary", None) or model.vocabulary
    assert isinstance(found, Vocabulary)
    return found


def freeze(model: nn.Module, train: Schedule) -> None:
    """Let the embedding stay as it is, if the recipe wants that."""
    for table in entrance(model).tables if train.frozen else ():
        table.requires_grad_(False)


def put_vectors(model: nn.Module, vectors: Vectors, tokenizer: Tokenizer) -> int:
    """Give the symbols that are words in `vectors` their rows; how many there were."""
    vocabulary = entrance(model)
    if len(vocabulary.tables) > 1:
        raise TrainingError("vectors fill an embedding of one width; use model.divisor=1")
    texts = [tokenizer.decode([token]).decode(errors="replace").strip() for token in range(tokenizer.size)]
    table = vocabulary.tables[0]
    fitted, found = vectors.fitted(table, texts)
    table.data.copy_(fitted)
    return found
