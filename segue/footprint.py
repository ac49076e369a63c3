"""What a model weighs, found by building and running it on the meta device: nothing is allocated.

Besides, for what does run: how much autograd keeps of it, and the largest tensor that it makes.

Letters: B lanes, T tokens in the segment, M states in memory, N layers, C width, H heads, D head width.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from segue.config import (
    ConvolutionalConfig,
    EncoderConfig,
    LanguageConfig,
    Reach,
    Reading,
    TranslationConfig,
    UniversalConfig,
    XLConfig,
)
from segue.nn.deferred import blank
from segue.nn.models import CLASSES, build_language_model
from segue.nn.vocab import LOGITS_AT_ONCE, MIN_ROWS
from segue.presets.sizes import Sizes
from segue.recipe import EncoderRecipe, Recipe, TrainConfig, TranslationRecipe

FLOAT = 4
"""Bytes of a float32."""


@cache
def parameters(config: LanguageConfig | TranslationConfig | EncoderConfig) -> int:
    with blank():
        model = CLASSES[config.kind](config)
    return sum(parameter.numel() for parameter in model.parameters())


def sizes(recipe: Recipe | TranslationRecipe | EncoderRecipe) -> Sizes:
    """What a recipe's model weighs; activations are counted for language models alone: other batches differ."""
    weights = parameters(recipe.model)
    if isinstance(recipe, Recipe):
        return Sizes(weights, training_bytes(recipe), reading_bytes(recipe.model, recipe.reading))
    return Sizes(weights, 4 * weights * FLOAT, weights * FLOAT)


def training_bytes(recipe: Recipe) -> int:
    """Weights, gradients and Adam's two moments; memory; and what one step keeps for its backward pass."""
    model, train = recipe.model, recipe.train
    memory = train.lanes * _held(model, train.memory) * FLOAT
    trained = parameters(model) + recipe.head_parameters
    return 4 * trained * FLOAT + memory + kept_bytes(model, train) + logits_bytes(model, train)


def logits_bytes(model: LanguageConfig, train: TrainConfig) -> int:
    """Log-probabilities that are kept at once, and their gradient, which is as large."""
    held = max(LOGITS_AT_ONCE, MIN_ROWS * model.edges[1])
    return 2 * FLOAT * min(held, train.lanes * train.segment * model.edges[1])


def reading_bytes(model: LanguageConfig, reading: Reading) -> int:
    """Weights, and one lane's memory: of Transformers as keys and values."""
    held = _held(model, reading.reach.memory)
    if isinstance(model, XLConfig | UniversalConfig):
        held = reading.reach.memory * model.layers * 2 * model.heads * model.head_width
    return (parameters(model) + held) * FLOAT


def _held(config: LanguageConfig, memory: int) -> int:
    """Numbers in one lane's full memory."""
    with blank():
        model = build_language_model(config)
    full = model.start(reach=Reach(memory=memory, initial="zeros"))
    return sum(row.numel() for row in full.rows)


def training_flops(config: LanguageConfig, train: TrainConfig) -> float:
    """Of the products in one step, forward and backward, with full memory projected anew."""
    softmax = 2 * train.lanes * train.segment * config.embedding * config.edges[1]
    read, _ = _body(config, train)
    with Flops() as counted, torch.no_grad():
        read()
    products: int = counted.total + softmax
    return 3.0 * products


def kept_bytes(config: LanguageConfig, train: TrainConfig) -> int:
    """What autograd keeps of one segment, with full memory, up to the last hidden state."""
    if isinstance(config, ConvolutionalConfig):  # its layers differ
        return _kept_by_body(config, train)
    depth = "steps" if isinstance(config, UniversalConfig) else "layers"
    one, two = (_kept_by_body(config.model_copy(update={depth: layers}), train) for layers in (1, 2))
    return one + (config.layers - 1) * (two - one)  # every further layer keeps the same


def _kept_by_body(config: LanguageConfig, train: TrainConfig) -> int:
    read, weights = _body(config, train)
    return kept_for_backward(read, weights)


def _body(config: LanguageConfig, train: TrainConfig) -> tuple[Callable[[], object], list[Tensor]]:
    """A call that reads one segment, with full memory, up to the last hidden state; and the weights it uses."""
    # The embedding keeps next to nothing, and clusters cannot run without data: a vocabulary of one will do.
    body = config.model_copy(update={"vocab": 1, "cutoffs": (), "divisor": 1, "embedding": config.width})
    with blank():
        model = build_language_model(body)
    reach = Reach(memory=train.memory, clamp=train.clamp, span=train.span, initial="zeros")
    memory = model.start(lanes=train.lanes, reach=reach)
    tokens = torch.zeros(train.lanes, train.segment, dtype=torch.int64, device="meta")
    return lambda: model(tokens, memory), list(model.parameters())


def kept_for_backward(run: Callable[[], object], besides: Iterable[Tensor]) -> int:
    """Bytes that autograd keeps of what is run, until its backward pass; weights and inputs aside."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    aside = {tensor.untyped_storage()._cdata for tensor in besides}
    del result  # alive until here: what it keeps must not be freed and counted again
    return sum(size for storage, size in kept.items() if storage not in aside)


class Largest(TorchDispatchMode):
    """Watches for the largest tensor that any operation makes, in backward passes too; a view makes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if not function.is_view:
            sizes = (tensor.numel() for tensor in tree_leaves(made) if isinstance(tensor, Tensor))
            self.elements = max(self.elements, *sizes, 0)
        return made


class Flops(TorchDispatchMode):
    """Counts the operations of all products by torch's own formulas. (Torch's counter imports its compiler.)"""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if (formula := flop_registry.get(function._overloadpacket)) is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=made))
        return made
