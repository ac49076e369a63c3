"""Training an encoder: batches of texts from a source, and the loss of its task.

What differs from task to task is the source: masked passages of a corpus, or labelled examples.

Letters: B texts, S tokens.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from segue.checkpoint import TextEncoder, describe_encoder
from segue.config import HeadConfig
from segue.distributed import ALONE, Ranks, set_gradient_sync
from segue.nn.task_encoder import TaskEncoder
from segue.progress import Report
from segue.recipe import EncoderRecipe
from segue.text.text_batches import TextBatch
from segue.text.wordpiece import WordPiece
from segue.training.encoder_objective import EncoderObjective, targets
from segue.training.loop import MicroBatch, Validation
from segue.training.state import Counters, State, fresh_state
from segue.training.weights import initial_model


class TextSource(Protocol):
    """The texts of a task, with their labels."""

    @property
    def tokenizer(self) -> WordPiece:
        """The tokenizer that cut the texts."""

    @property
    def notes(self) -> list[str]:
        """What a user should know of the texts before training begins."""

    def metadata(self) -> dict[str, Any]:
        """For the log: at least `tokens_per_step`, about how many tokens are read in a step."""

    def begin(self, model: TaskEncoder) -> None:
        """Fit a fresh head to the texts before the first step."""

    def draw(self, counters: Counters) -> tuple[TextBatch, Counters]:
        """The texts of the next step, for all ranks, and the counters behind them.

        They depend on the counters and the recipe's seed alone, so that a resumed run goes on exactly.
        """

    def validate(self, model: TaskEncoder, report: Report) -> Validation:
        """Score the model on the validation split."""


@dataclass(frozen=True, eq=False)
class EncodingTask:
    """Train an encoder with a head."""

    recipe: EncoderRecipe
    source: TextSource
    device: torch.device
    ranks: Ranks = ALONE

    def fresh(self, model: nn.Module | None = None) -> State:
        """The initial state of a run: fresh weights, or those of a model that fit, its head for the same task alone."""
        assert model is None or isinstance(model, TaskEncoder)
        weights = None if model is None else taken_weights(model, self.recipe)
        built, trained = initial_model(
            self._build, EncoderObjective, weights, self.recipe.train, self.device, self.ranks
        )
        if not (model is not None and keeps_head(model.task, self.recipe.task)):
            self.source.begin(built)
        return fresh_state(built, trained, self.recipe.train, self.ranks)

    def _build(self) -> TaskEncoder:
        model = TaskEncoder(self.recipe.model, self.recipe.task)
        if model.encoder.pooler is not None and not self.recipe.task.pooled:
            # it has no part in the loss, and DDP waits for the gradient of every weight that asks for one
            model.encoder.pooler.requires_grad_(False)
        return model

    def metadata(self) -> dict[str, Any]:
        with torch.device("meta"):
            model = TaskEncoder(self.recipe.model, self.recipe.task)
        about = self.source.metadata()
        tables = sum(weight.numel() for name, weight in model.named_parameters() if name in TABLES)
        layers = sum(weight.numel() for weight in model.parameters()) - tables
        layers *= self.recipe.model.layers if self.recipe.model.shared_layers else 1
        if self.recipe.task.task == "masked":
            layers += int(self.recipe.train.masked * model.encoder.words.weight.numel())
        return {"flops_per_step": 6.0 * about["tokens_per_step"] * layers, "bytes_per_token": None, **about}

    def micro_batches(self, state: State) -> Iterator[MicroBatch]:
        """The next step's texts in `accumulate` micro-batches, this rank's only. Every label has equal weight."""
        batch, state.counters = self.source.draw(state.counters)
        accumulate, ranks = self.recipe.train.accumulate, self.ranks
        parts, total = accumulate * ranks.world_size, max(1, targets(self.recipe.task, batch))
        for group in range(accumulate):
            set_gradient_sync(state.trained, group + 1 == accumulate)
            own = batch.rows(slice(group * ranks.world_size + ranks.rank, None, parts))
            # fewer texts than ranks: another's text, without weight
            share = len(own.input_ids) / len(batch.input_ids)
            own = own if share else batch.rows(slice(0, 1))
            with self._precision():
                losses, _, auxiliary = state.trained(own)
            # gradients are the mean over ranks, and the loss of a rank is its share of a sum
            weight = ranks.world_size if share else 0
            yield MicroBatch(
                weight * losses.sum() / total,
                losses,
                partial(_text, own.numbers),
                None if auxiliary is None else auxiliary * (ranks.world_size * share),
            )

    def _precision(self) -> Any:
        if self.recipe.train.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def validate(self, state: State, report: Report) -> Validation:
        """Score the validation split, as the source does it."""
        objective = getattr(state.trained, "module", state.trained)  # without its DDP wrapper
        assert isinstance(objective, EncoderObjective)
        return objective.within(partial(self.source.validate, _encoder(state), report))

    def write(self, folder: Path, state: State) -> None:
        describe_encoder(folder, TextEncoder(_encoder(state), self.source.tokenizer, self.recipe.reading))


TABLES = ("encoder.words.weight", "encoder.places.weight", "encoder.types.weight")
"""Weights that are looked up and not multiplied."""


def keeps_head(before: HeadConfig | None, task: HeadConfig) -> bool:
    """Whether a head goes on with its weights: it has the same task, with the same labels."""
    return before is not None and (before.task, before.labels) == (task.task, task.labels)


def taken_weights(model: TaskEncoder, recipe: EncoderRecipe) -> Mapping[str, Tensor]:
    """The weights of a model that a run begins with; those that are missing begin fresh."""
    dropped = [] if recipe.model.pooler else ["encoder.pooler."]
    if not keeps_head(model.task, recipe.task):
        dropped.append("head.")
    elif not recipe.task.next_sentence:
        dropped.append("head.next_sentence.")
    return {
        name: weight for name, weight in model.state_dict().items() if not name.startswith(tuple(dropped))
    }


def begin_note(before: TaskEncoder, recipe: EncoderRecipe) -> str:
    """What a run takes of the model that it begins with, for the log."""
    names = {"masked": "masked words", "text": "labels", "tags": "tags", "span": "spans", "score": "scores"}
    head = f"the head of {names[recipe.task.task]}"
    fresh = [] if keeps_head(before.task, recipe.task) else [head]
    if recipe.model.pooler and not before.config.pooler:
        fresh.append("the pooler")
    had = before.task is not None and before.task.task == "masked" and before.task.next_sentence
    if recipe.task.next_sentence and not had:
        fresh.append("next-sentence prediction")
    taken = "the body" if head in fresh else f"the body and {head}"
    return f"{taken} {'begin' if head not in fresh else 'begins'} with the weights given" + (
        f"; fresh: {', '.join(fresh)}" if fresh else ""
    )


def _text(numbers: Tensor, row: int) -> str:
    return f"text {int(numbers[row])}"


def _encoder(state: State) -> TaskEncoder:
    assert isinstance(state.model, TaskEncoder)
    return state.model
