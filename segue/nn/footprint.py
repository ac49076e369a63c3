"""What a model weighs, found by building and running it on the meta device: nothing is allocated.

Letters: B lanes, T tokens in the segment, M states in memory, N layers, C width, H heads, D head width.
"""

from functools import cache

import torch
from torch import Tensor, nn

from segue.config import RELATIVE, Reach, Reading, RecurrentSeq2SeqConfig, Seq2SeqConfig, XLConfig
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.nn.vocab import CHUNK, LEAST
from segue.nn.xl import TransformerXL
from segue.recipe import Recipe, TrainConfig

FLOAT = 4
"""Bytes of a float32."""


@cache
def parameters(config: XLConfig | Seq2SeqConfig | RecurrentSeq2SeqConfig) -> int:
    with torch.device("meta"):
        match config:
            case XLConfig():
                model: nn.Module = TransformerXL(config)
            case Seq2SeqConfig():
                model = Seq2Seq(config)
            case RecurrentSeq2SeqConfig():
                model = RecurrentSeq2Seq(config)
    return sum(parameter.numel() for parameter in model.parameters())


def training_bytes(recipe: Recipe) -> int:
    """Weights, gradients and Adam's two moments; memory; and what one step keeps for its backward pass."""
    model, train = recipe.model, recipe.train
    memory = train.lanes * train.memory * model.layers * model.width * FLOAT
    return 4 * parameters(model) * FLOAT + memory + kept_bytes(model, train) + logits_bytes(model, train)


def logits_bytes(model: XLConfig, train: TrainConfig) -> int:
    """Log-probabilities that are kept at once, and their gradient, which is as large."""
    held = max(CHUNK, LEAST * model.edges[1])
    return 2 * FLOAT * min(held, train.lanes * train.segment * model.edges[1])


def reading_bytes(model: XLConfig, reading: Reading) -> int:
    """Weights, and one lane's memory as keys and values."""
    memory = reading.reach.memory * model.layers * 2 * model.heads * model.head_width
    return (parameters(model) + memory) * FLOAT


def training_flops(config: XLConfig, train: TrainConfig) -> float:
    """Of the products in one step, forward and backward, with full memory projected anew."""
    inner, keys, rows = (
        config.heads * config.head_width,
        train.memory + train.segment,
        train.lanes * train.segment,
    )
    projections = (2 * rows + 2 * train.lanes * keys) * config.width * inner
    distances = keys * config.width * inner if config.encoding == "xl" else 0
    scores = (3 if config.encoding in RELATIVE else 2) * rows * keys * inner
    feed_forward = 2 * rows * config.width * config.inner
    softmax = rows * config.embedding * config.edges[1]
    forward = 2 * (config.layers * (projections + distances + scores + feed_forward) + softmax)
    return 3.0 * forward


def kept_bytes(config: XLConfig, train: TrainConfig) -> int:
    """What autograd keeps of one segment, with full memory, up to the last hidden state."""
    one, two = (_kept_by_body(config.model_copy(update={"layers": layers}), train) for layers in (1, 2))
    return one + (config.layers - 1) * (two - one)  # every further layer keeps the same


def _kept_by_body(config: XLConfig, train: TrainConfig) -> int:
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    # The embedding keeps next to nothing, and clusters cannot run without data: a vocabulary of one will do.
    body = config.model_copy(update={"vocab": 1, "cutoffs": (), "divisor": 1, "embedding": config.width})
    with torch.device("meta"):
        model = TransformerXL(body)
    memory = model.start(lanes=train.lanes, reach=Reach(memory=train.memory, initial="zeros"))
    tokens = torch.zeros(train.lanes, train.segment, dtype=torch.int64, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, _ = model(tokens, memory)
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    del hidden  # alive until here: what it keeps must not be freed and counted again
    return sum(size for storage, size in kept.items() if storage not in weights)
