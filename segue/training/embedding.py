"""Pretrained word vectors as a model's input embedding."""

from torch import Tensor, nn

from segue.errors import TrainingError
from segue.interop.vectors import Vectors
from segue.nn.task_encoder import TaskEncoder
from segue.nn.vocab import Vocabulary
from segue.recipe import Schedule
from segue.text.tokenizer import Tokenizer


def input_tables(model: nn.Module) -> list[Tensor]:
    """The embedding that reads the input, one table for each cluster: of a translator, the source's."""
    if isinstance(model, TaskEncoder):
        return [model.encoder.words.weight]
    apart = (getattr(model, name, None) for name in ("source_vocabulary", "input_vocabulary"))
    vocabulary = next(filter(None, apart), model.vocabulary)
    assert isinstance(vocabulary, Vocabulary)
    return list(vocabulary.tables)


def freeze(model: nn.Module, train: Schedule) -> None:
    """Take the input embedding out of training if the recipe says `train.frozen`."""
    for table in input_tables(model) if train.frozen else ():
        table.requires_grad_(False)


def initialize_embedding(model: nn.Module, vectors: Vectors, tokenizer: Tokenizer) -> int:
    """Set the embedding of each symbol that is a word in `vectors`; returns the number of these symbols."""
    tables = input_tables(model)
    if len(tables) > 1:
        raise TrainingError(
            "word vectors need an embedding of one width for all symbols; use model.divisor=1"
        )
    texts = [tokenizer.decode([token]).decode(errors="replace").strip() for token in range(tokenizer.size)]
    rows, matched = vectors.fitted(tables[0], texts)
    tables[0].data.copy_(rows)
    return matched
