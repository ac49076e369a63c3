"""Fine-tuning: labelled examples in a new order in every epoch, texts of similar length together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from segue.checkpoint import TextEncoder
from segue.errors import TrainingError
from segue.infer.judge_examples import judge_examples
from segue.nn.task_encoder import LinearHead, TaskEncoder
from segue.progress import Report
from segue.recipe import EncoderRecipe
from segue.text.batches import BATCHES_PER_POOL
from segue.text.example_pieces import (
    Labelled,
    check_types,
    labelled_questions,
    labelled_sentences,
    labelled_texts,
)
from segue.text.examples import Example, ExampleSet
from segue.text.text_batches import IGNORED_LABEL, TextBatch, padded_rows
from segue.text.wordpiece import WordPiece
from segue.training.loop import Validation
from segue.training.state import Counters


@dataclass(frozen=True, eq=False)
class LabelledSource:
    """The examples of a folder, as its tokenizer cuts them."""

    recipe: EncoderRecipe
    data: ExampleSet
    _orders: dict[int, list[np.ndarray[Any, Any]]] = field(default_factory=dict)  # by epoch: its batches

    @property
    def tokenizer(self) -> WordPiece:
        return self.data.tokenizer

    @cached_property
    def train(self) -> list[Labelled]:
        """The texts to train on, tokenized; long ones in windows, or cut."""
        task = self.recipe.task
        check_types(self.recipe.model.types, pairs=task.pairs or task.task == "span")
        examples = cast("list[Any]", self.data.examples("train"))
        longest = self.recipe.reading.max_length
        if task.task == "span":
            made = labelled_questions(examples, self.tokenizer, longest)
        else:
            make = labelled_sentences if task.task == "tags" else labelled_texts
            made = make(examples, task.labels, self.tokenizer, longest)
        if not made:
            raise TrainingError(f"the tokenizer finds no word in the training examples of {self.data.folder}")
        return made

    @cached_property
    def valid(self) -> list[Example]:
        return self.data.examples("valid")

    @property
    def notes(self) -> list[str]:
        """What a user should know of the training texts."""
        cut, longest = sum(one.pieces.truncated for one in self.train), self.recipe.reading.max_length
        if not cut:
            return []
        if self.recipe.task.task in ("tags", "span"):
            return [f"texts of more than {longest} tokens are read in {cut:,} overlapping windows"]
        return [f"{cut:,} texts have more than {longest} tokens and are cut"]

    def metadata(self) -> dict[str, Any]:
        tokens = sum(len(one.pieces.ids) for one in self.train)
        batch = self.recipe.train.batch
        return {
            "tokens_per_step": batch * tokens / len(self.train),
            "steps_per_epoch": -(-len(self.train) // batch),
            "examples": self.data.header.splits["train"].examples,
        }

    @torch.no_grad()
    def begin(self, model: TaskEncoder) -> None:
        """Scores begin at their mean: else the first steps saturate the pooler on the way there."""
        if self.recipe.task.task == "score":
            assert isinstance(model.head, LinearHead)
            model.head.linear.bias.fill_(float(np.mean([cast("float", one.target) for one in self.train])))

    def draw(self, counters: Counters) -> tuple[TextBatch, Counters]:
        """The next batch of the epoch; of an epoch's last, what is left."""
        epoch, position = counters.epoch, counters.position
        if position == len(self._order(epoch)):
            epoch, position = epoch + 1, 0
        numbers = self._order(epoch)[position]
        after = counters.model_copy(update={"epoch": epoch, "position": position + 1})
        return self.batch(numbers.tolist()), after

    def batch(self, numbers: Sequence[int]) -> TextBatch:
        """Some texts as tensors."""
        texts = [self.train[number] for number in numbers]
        rows: list[Any] = [one.target for one in texts]
        by_token = self.recipe.task.task == "tags"
        return TextBatch(
            torch.tensor(numbers),
            padded_rows([one.pieces.ids for one in texts], self.tokenizer.padding),
            padded_rows([[1] * len(one.pieces.ids) for one in texts], 0),
            padded_rows([one.pieces.types for one in texts], 0),
            padded_rows(rows, IGNORED_LABEL) if by_token else torch.tensor(rows),
        )

    def _order(self, epoch: int) -> list[np.ndarray[Any, Any]]:
        """The numbers of each batch's texts: shuffled, sorted by length in pools, and the batches shuffled again."""
        if epoch not in self._orders:
            self._orders.clear()
            random, size = np.random.default_rng([self.recipe.train.seed, epoch]), self.recipe.train.batch
            lengths = np.array([len(one.pieces.ids) for one in self.train])
            order, pool = random.permutation(len(lengths)), size * BATCHES_PER_POOL
            chosen: list[np.ndarray[Any, Any]] = []
            for first in range(0, len(order), pool):
                some = order[first : first + pool]
                some = some[np.argsort(lengths[some], kind="stable")]
                chosen += [some[begin : begin + size] for begin in range(0, len(some), size)]
            self._orders[epoch] = [chosen[place] for place in random.permutation(len(chosen))]
        return self._orders[epoch]

    def validate(self, model: TaskEncoder, report: Report) -> Validation:
        """The figures of the validation split; the first of them decides which checkpoint is the best."""
        encoder = TextEncoder(model, self.tokenizer, self.recipe.reading)
        scores = judge_examples(encoder, self.valid, lambda _, done, total: report("validating", done, total))
        return Validation(-scores.main, scores.examples, scores.figures)
