"""Pre-training: masked passages of a corpus in a new order in every epoch, masked anew at every step."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from segue.distributed import distributed_like
from segue.infer.masked import evaluate_masked
from segue.nn.task_encoder import MaskedHead, TaskEncoder
from segue.progress import Report
from segue.recipe import EncoderRecipe
from segue.text.corpus import TOKENIZER, Corpus
from segue.text.masked_texts import MaskedTexts, Masking, masked_texts
from segue.text.masking import MaskablePieces, maskable_pieces
from segue.text.text_batches import TextBatch
from segue.text.wordpiece import WordPiece, read_wordpiece
from segue.training.loop import Validation
from segue.training.state import Counters

ORDERS, MASKS = 0, 1
"""What random numbers are drawn for, so that the order of texts and their masks do not depend on each other."""

COUNTED = 10_000_000
"""Tokens whose frequencies are enough to know."""

Order = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class MaskedSource:
    """Masked texts of a prepared corpus."""

    recipe: EncoderRecipe
    corpus: Corpus
    _epochs: dict[tuple[int, int], tuple[MaskedTexts, Order]] = field(default_factory=dict)

    @cached_property
    def tokenizer(self) -> WordPiece:
        return read_wordpiece(self.corpus.folder / TOKENIZER)

    @cached_property
    def pieces(self) -> MaskablePieces:
        return maskable_pieces(self.tokenizer, str(self.corpus.folder))

    @property
    def notes(self) -> list[str]:
        return []

    def texts(self, split: str, length: int, *, offset: int = 0) -> MaskedTexts:
        train = self.recipe.train
        masking = Masking(train.masked, train.whole_words, self.recipe.task.next_sentence)
        name = f"{split} of {self.corpus.folder}"
        return masked_texts(self.corpus.stream(split), self.pieces, masking, length, name, offset=offset)

    def metadata(self) -> dict[str, Any]:
        train, longest = self.recipe.train, self.recipe.reading.max_length
        split = self.corpus.header.splits["train"]
        short = min(1.0, train.short_steps / train.steps)
        tokens = round(train.batch * (short * train.short_length + (1 - short) * longest))
        return {
            "tokens_per_step": tokens,  # the mean of short and long ones
            "steps_per_epoch": max(1, split.tokens // tokens),
            "documents": split.documents,
        }

    @torch.no_grad()
    def begin(self, model: TaskEncoder) -> None:
        """The output's bias begins as the pieces' frequencies: else the table of words learns them, in all its rows."""
        assert isinstance(model.head, MaskedHead)
        ids = self.corpus.stream("train").ids[:COUNTED]
        counts = torch.from_numpy(np.bincount(ids, minlength=len(model.head.bias)))
        frequencies = (counts + 1) / (counts + 1).sum()
        model.head.bias.copy_(distributed_like(model.head.bias, frequencies.log()))

    def draw(self, counters: Counters) -> tuple[TextBatch, Counters]:
        """The next texts of the epoch. A rest that does not fill a batch is left out: the next order is another."""
        train = self.recipe.train
        length = train.length_at(counters.step, self.recipe.reading.max_length)
        epoch, position = counters.epoch, counters.position
        if position and counters.step == train.short_steps:  # other passages from here on
            epoch, position = epoch + 1, 0
        texts, order = self._epoch(epoch, length)
        if position and position + train.batch > len(order):
            epoch, position = epoch + 1, 0
            texts, order = self._epoch(epoch, length)
        numbers = order[position : position + train.batch]
        random = np.random.default_rng([train.seed, MASKS, counters.step])
        batch = texts.batch(numbers, [texts.text(int(number), random) for number in numbers])
        return batch, counters.model_copy(update={"epoch": epoch, "position": position + len(numbers)})

    def _epoch(self, epoch: int, length: int) -> tuple[MaskedTexts, Order]:
        """The texts of an epoch, whose bounds differ from those of other epochs, and their order."""
        if (epoch, length) not in self._epochs:
            self._epochs.clear()
            random = np.random.default_rng([self.recipe.train.seed, ORDERS, epoch])
            texts = self.texts("train", length, offset=int(random.integers(length)) if epoch else 0)
            self._epochs[epoch, length] = texts, random.permutation(len(texts))
        return self._epochs[epoch, length]

    def validate(self, model: TaskEncoder, report: Report) -> Validation:
        """Nats per masked token, and how many of them are predicted; the masks are the same every time."""
        score = evaluate_masked(
            model,
            self.texts("valid", self.recipe.reading.max_length),
            limit=self.recipe.train.validate_tokens,
            report=lambda _, done, total: report("validating", done, total),
        )
        scores = score.scores()
        return Validation(scores["nats"], score.tokens, scores)
