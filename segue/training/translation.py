"""Learning to translate: pairs in batches of like length, the target shifted right behind a start token.

Letters: B pairs, T tokens, V vocabulary.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segue.checkpoint import Translator, build_translator, write_translator
from segue.infer.judge import bleu, split_nats, split_texts
from segue.infer.translate import Batch, batch_of, translate
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.recipe import TranslationRecipe
from segue.text.batches import batches
from segue.text.pairs import PairSet
from segue.training.loop import Part
from segue.training.state import State, fresh_state


@dataclass(frozen=True, eq=False)
class TranslationTask:
    """An encoder-decoder and prepared pairs."""

    recipe: TranslationRecipe
    pairs: PairSet
    device: torch.device
    _orders: dict[int, list[np.ndarray[Any, Any]]] = field(default_factory=dict)  # of the epoch under way

    def fresh(self, model: nn.Module | None = None) -> State:
        """The beginning of a run, from nothing or from the weights of a model."""
        torch.manual_seed(self.recipe.train.seed)
        built = build_translator(self.recipe.model)
        if model is not None:
            built.load_state_dict(model.state_dict())
        return fresh_state(built.to(self.device), self.recipe.train)

    def begin(self) -> dict[str, Any]:
        train, lengths = self.recipe.train, self.pairs.lengths("train")
        tokens = train.tokens * train.accumulate
        with torch.device("meta"):
            weights = sum(weight.numel() for weight in build_translator(self.recipe.model).parameters())
        split = self.pairs.split("train")
        return {
            "tokens_per_step": tokens,
            "flops_per_step": 6.0 * tokens * weights,  # of the products with weights, were a batch full
            "bytes_per_token": None,
            "steps_per_epoch": math.ceil(lengths.max(axis=1).sum() / tokens),
            "pairs": split.pairs,
        }

    def parts(self, state: State) -> Iterator[Part]:
        """A few batches, which count for as many tokens as they have."""
        found = [self._next(state) for _ in range(self.recipe.train.accumulate)]
        total = sum(int((batch.targets >= 0).sum()) for batch in found)
        for batch in found:
            nats = self._nats(_translator(state), batch)
            yield Part(nats.sum() / total, nats, partial(_pair, batch.numbers))

    def _next(self, state: State) -> Batch:
        counters, train = state.counters, self.recipe.train
        if counters.epoch not in self._orders:
            self._orders.clear()
            lengths = self.pairs.lengths("train")
            self._orders[counters.epoch] = batches(lengths, train.tokens, train.seed, counters.epoch)
        order = self._orders[counters.epoch]
        if counters.position == len(order):
            state.count(position=0, epoch=counters.epoch + 1)
            return self._next(state)
        state.count(position=counters.position + 1)
        return batch_of(self.pairs, order[counters.position])

    def _nats(self, model: Seq2Seq | RecurrentSeq2Seq, batch: Batch) -> Tensor:
        """(B, T) Nats against the smoothed target; zero in padding."""
        train, device = self.recipe.train, self.device
        autocast = torch.autocast(device.type, torch.bfloat16)
        with nullcontext() if train.precision == "float32" else autocast:
            memory = model.start(batch.source.to(device), batch.source_lengths)
            hidden, _ = model(batch.target.to(device), memory, lengths=batch.target_lengths)
            targets = batch.targets.to(device)
            nats = model.vocabulary.smoothed_nats(hidden, targets.clamp(min=0), train.smoothing)
        return nats.masked_fill(targets < 0, 0)

    def validate(self, state: State) -> dict[str, float]:
        """Nats per token of the validation split, without smoothing; and BLEU if that decides."""
        nats = split_nats(_translator(state), self.pairs, "valid")
        found = {"worth": nats, "nats": nats, "perplexity": math.exp(min(700.0, nats))}
        if self.recipe.train.best == "bleu":
            score = self._bleu(state)
            found |= {"worth": -score, "bleu": score}
        return found

    def _bleu(self, state: State) -> float:
        sources, wanted = split_texts(self.pairs, "valid")
        greedy = self.recipe.translating.model_copy(update={"width": 1})
        found = translate(self._bundle(state), sources, translating=greedy)
        return bleu([best[0].text for best in found], wanted, lower=True).score

    def write(self, folder: Path, state: State) -> None:
        write_translator(folder, self._bundle(state))

    def _bundle(self, state: State) -> Translator:
        header = self.pairs.header
        return Translator(
            _translator(state), self.recipe.translating, self.pairs.source, self.pairs.target, header.lower
        )


def _pair(numbers: np.ndarray[Any, Any], row: int) -> str:
    return f"pair {int(numbers[row])}"


def _translator(state: State) -> Seq2Seq | RecurrentSeq2Seq:
    assert isinstance(state.model, Seq2Seq | RecurrentSeq2Seq)
    return state.model
