"""The losses of an encoder's tasks: cross-entropy of masked words, labels, tags and span ends; squared error of scores.

Letters: B texts, S tokens, V vocabulary.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import HeadConfig
from segue.infer.masked import masked_logits
from segue.nn.task_encoder import TaskEncoder
from segue.text.text_batches import IGNORED_LABEL, TextBatch
from segue.training.objective import ObjectiveOutput

Value = TypeVar("Value")


def targets(task: HeadConfig, batch: TextBatch) -> int:
    """How many losses a batch has: of tokens with a label, or of texts."""
    if task.task in ("masked", "tags"):
        return int((batch.labels != IGNORED_LABEL).sum())
    return len(batch.labels)


class EncoderObjective(nn.Module):
    """The loss of a batch, unreduced; of masked texts with next-sentence prediction, its mean loss is the auxiliary."""

    def __init__(self, model: TaskEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: TextBatch) -> ObjectiveOutput:
        """Losses by token (B, S), zero without a label; or by text (B, 1)."""
        task = self.model.task
        assert task is not None, "there is nothing to predict"
        device = self.model.encoder.words.weight.device
        labels = batch.labels.to(device)
        if task.task == "masked":
            return self._masked(batch, labels)
        predicted = self.model(
            batch.input_ids.to(device), batch.attention_mask.to(device), batch.token_type_ids.to(device)
        )
        match task.task:
            case "text":
                losses = F.cross_entropy(predicted.logits, labels, reduction="none")[:, None]
            case "score":
                losses = F.mse_loss(predicted.logits, labels[:, None].to(predicted.logits), reduction="none")
            case "tags":
                losses = F.cross_entropy(
                    predicted.logits.transpose(1, 2), labels, ignore_index=IGNORED_LABEL, reduction="none"
                )
            case "span":
                losses = _span_losses(predicted.logits, labels, batch.attention_mask.to(device))
        return ObjectiveOutput(losses)

    def _masked(self, batch: TextBatch, labels: Tensor) -> ObjectiveOutput:
        logits, following = masked_logits(self.model, batch)
        chosen = labels != IGNORED_LABEL
        nats = F.cross_entropy(logits, labels[chosen], reduction="none")
        by_place = nats.new_zeros(labels.shape).masked_scatter(chosen, nats)
        if following is None or batch.next_sentence_label is None:
            return ObjectiveOutput(by_place)
        follows = batch.next_sentence_label.to(labels.device)
        return ObjectiveOutput(by_place, None, F.cross_entropy(following, follows))

    def within(self, do: Callable[[], Value]) -> Value:
        """Call `do` while FSDP holds the model's weights gathered."""
        return do()


def _span_losses(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(B, 1) The mean of the cross-entropies of first and last token (B, 2); padding is no candidate."""
    seen = logits.masked_fill(mask[:, :, None] == 0, torch.finfo(logits.dtype).min)
    return F.cross_entropy(seen, labels, reduction="none").mean(dim=1, keepdim=True)
