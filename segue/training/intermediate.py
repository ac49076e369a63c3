"""Auxiliary losses of Al-Rfou's character Transformer (2018): lower layers predict too, and two tokens ahead.

    loss = Σ_{layers l that still count} mean_i [ CE_l1(x_{i+1}) + ½ CE_l2(x_{i+2}) ]

Layer l of N counts until step l/N of `train.intermediate`, and the last one always. Every layer and target has an
output layer of its own. All but the last layer's first belong to training alone: they are saved with the run, and the
model that is read with does not have them. Letters: B lanes, T tokens in the segment, C width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segue.nn.language import LanguageModel
from segue.nn.memory import Memory
from segue.nn.vocab import linear_nats
from segue.nn.xl import TransformerXL
from segue.recipe import TrainConfig
from segue.text.lanes import Segment
from segue.training.objective import Objective, ObjectiveOutput, PonderObjective

WEIGHTS = (1.0, 0.5)
"""Of the next token's cross-entropy, and of that of the token after it."""


class Prediction(NamedTuple):
    """What a head predicts."""

    layer: int  # from the states of this layer, counted from 0
    offset: int  # 0: the next token; 1: the one after it


def objective_of(train: TrainConfig) -> Callable[[LanguageModel], Objective]:
    """What a recipe trains: the cross-entropy, alone, with the ponder cost, or with the auxiliary losses."""
    if train.ponder:
        return partial(PonderObjective, ponder=train.ponder)
    return partial(IntermediateObjective, train=train) if train.heads(2) > 0 else Objective


def counting_layers(step: int, layers: int, until: int) -> range:
    """The layers, from 0, that predict at a step: layer l of N, from 1, until step l/N of `until`; the last always.

    In whole numbers, and not as a share of training: resuming and extending a run do not change it.
    """
    first = next((layer for layer in range(layers - 1) if step * layers < (layer + 1) * until), layers - 1)
    return range(first, layers)


def auxiliary_predictions(layers: int, train: TrainConfig) -> list[Prediction]:
    """All that is predicted besides the next token by the last layer: one head for each."""
    predicting = range(layers) if train.intermediate else range(layers - 1, layers)
    both = [Prediction(layer, offset) for layer in predicting for offset in range(train.ahead)]
    both.remove(Prediction(layers - 1, 0))
    return both


class IntermediateObjective(Objective):
    """The cross-entropy of a segment, and in training the auxiliary losses."""

    def __init__(self, model: LanguageModel, train: TrainConfig) -> None:
        super().__init__(model)
        assert isinstance(model, TransformerXL)
        config = model.config
        self.until, self.predictions = train.intermediate, auxiliary_predictions(config.layers, train)
        self.heads = nn.Parameter(torch.empty(len(self.predictions), config.vocab, config.width))
        nn.init.normal_(self.heads, 0.0, config.init)

    def forward(self, segment: Segment, memory: Memory, step: int = 0) -> ObjectiveOutput:
        if not self.training:
            return super().forward(segment, memory)
        model, device = self.model, self.heads.device
        assert isinstance(model, TransformerXL)
        with _outputs(model.blocks) as outputs:
            hidden, after = model(segment.tokens.to(device, non_blocking=True), memory, starts=segment.starts)
        targets = segment.targets.to(device, non_blocking=True)
        states = [model.dropout(output).transpose(0, 1) for output in outputs[:-1]] + [hidden]
        counting = counting_layers(step, len(states), self.until)
        auxiliary = auxiliary_loss(states, targets, self.heads, self.predictions, counting)
        return ObjectiveOutput(model.nats(hidden, targets), after, auxiliary)


def auxiliary_loss(
    states: Sequence[Tensor],
    targets: Tensor,
    heads: Tensor,
    predictions: Sequence[Prediction],
    counting: range,
) -> Tensor:
    """A scalar, from the states (B, T, C) of each layer, targets (B, T), and a head (V, C) for each prediction."""
    tables = heads.unbind()  # all at once: heads that do not count then have a gradient of zero, not none
    total = 0.0 * tables[0][0, 0]
    for table, (layer, offset) in zip(tables, predictions, strict=True):
        if layer in counting:
            total = total + WEIGHTS[offset] * _mean_nats(states[layer], targets, table, offset)
    return total


def _mean_nats(states: Tensor, targets: Tensor, table: Tensor, offset: int) -> Tensor:
    """The mean over all positions; the last `offset` positions of a segment have no such target, and count as 0."""
    size = targets.size(1) - offset
    rows, wanted = states[:, :size].reshape(-1, states.size(-1)), targets[:, offset:].reshape(-1)
    return linear_nats(rows, table, None, wanted).sum() / targets.numel()


@contextmanager
def _outputs(blocks: nn.ModuleList) -> Iterator[list[Tensor]]:
    """A list that the outputs (T, B, C) of the blocks are added to when they are called."""
    outputs: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda *call: outputs.append(call[2])) for block in blocks]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
