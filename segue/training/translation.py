"""Training a translator: batches of pairs of similar length, decoder input shifted right behind a start token.

Letters: B pairs, T tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from segue.checkpoint import Translator, describe_translator
from segue.distributed import ALONE, Ranks, set_gradient_sync
from segue.infer.judge import bleu, read_split, split_texts
from segue.infer.translate import translate
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.models import build_translator
from segue.progress import Report
from segue.recipe import TranslationRecipe
from segue.text.batches import batches
from segue.text.pair_batches import Batch, batch_of
from segue.text.pairs import PairSet
from segue.text.special_tokens import IGNORED
from segue.training.loop import MicroBatch, Validation
from segue.training.objective import PairObjective, PonderPairObjective
from segue.training.state import State, fresh_state
from segue.training.weights import initial_model


@dataclass(frozen=True, eq=False)
class TranslationTask:
    """Train an encoder-decoder on prepared pairs."""

    recipe: TranslationRecipe
    pairs: PairSet
    device: torch.device
    ranks: Ranks = ALONE
    _orders: dict[int, list[np.ndarray[Any, Any]]] = field(default_factory=dict)  # by epoch: its batches

    def fresh(self, model: nn.Module | None = None) -> State:
        """The initial state of a run, with fresh weights or those of a model."""
        train = self.recipe.train
        weights = None if model is None else model.state_dict()
        build = partial(build_translator, self.recipe.model)
        objective: Callable[[Any], nn.Module] = partial(PairObjective, smoothing=train.smoothing)
        if train.ponder:
            objective = partial(PonderPairObjective, smoothing=train.smoothing, ponder=train.ponder)
        built, trained = initial_model(build, objective, weights, train, self.device, self.ranks)
        return fresh_state(built, trained, train, self.ranks)

    def metadata(self) -> dict[str, Any]:
        train, lengths = self.recipe.train, self.pairs.lengths("train")
        tokens = train.tokens * train.accumulate
        with torch.device("meta"):
            weights = sum(weight.numel() for weight in build_translator(self.recipe.model).parameters())
        split = self.pairs.split("train")
        return {
            "tokens_per_step": tokens,
            "flops_per_step": 6.0 * tokens * weights,  # of full batches, forward and backward
            "bytes_per_token": None,
            "steps_per_epoch": math.ceil(lengths.max(axis=1).sum() / tokens),
            "pairs": split.pairs,
        }

    def micro_batches(self, state: State) -> Iterator[MicroBatch]:
        """The next `accumulate` batches, each with this rank's pairs only. Every token of a step has equal weight."""
        accumulate, ranks = self.recipe.train.accumulate, self.ranks
        chosen = [self._next(state) for _ in range(accumulate)]
        sizes = [self._sizes(numbers) for numbers in chosen]
        both_sides = np.concatenate(sizes).sum(axis=0)
        for place, numbers in enumerate(chosen):
            set_gradient_sync(state.trained, place + 1 == accumulate)
            batch = self._own_pairs(numbers)
            share = sizes[place][ranks.rank :: ranks.world_size].sum() / both_sides.sum()
            with self._precision():
                nats, _, auxiliary = state.trained(batch)
            # gradients are the mean over ranks, and the loss of a rank is its share of a sum
            yield MicroBatch(
                ranks.world_size * nats.sum() / int(both_sides[1]),
                nats,
                partial(_pair, batch.numbers),
                None if auxiliary is None else auxiliary * (ranks.world_size * float(share)),
            )

    def _sizes(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """(B, 2) The tokens of each pair's source and target, with one special token each."""
        return np.array([[len(side) + 1 for side in self.pairs.pair(int(number))] for number in numbers])

    def _own_pairs(self, numbers: np.ndarray[Any, Any]) -> Batch:
        """The pairs of a batch that are this rank's: every `world_size`-th, so that all ranks have similar lengths."""
        own = numbers[self.ranks.rank :: self.ranks.world_size]
        if len(own):
            return batch_of(self.pairs, own)
        filler = batch_of(self.pairs, numbers[:1])  # fewer pairs than ranks: a pair without loss
        return replace(filler, targets=torch.full_like(filler.targets, IGNORED))

    def _next(self, state: State) -> np.ndarray[Any, Any]:
        """The numbers of the next batch's pairs."""
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
        return order[counters.position]

    def _precision(self) -> Any:
        if self.recipe.train.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def validate(self, state: State, report: Report) -> Validation:
        """Nats per token on the validation split, without label smoothing; and BLEU if `train.best` is bleu."""
        validation: Validation = _objective(state).within(partial(self._scores, state, report))
        return validation

    def _scores(self, state: State, report: Report) -> Validation:
        reading = read_split(_translator(state), self.pairs, "valid")
        nats, pairs = reading.nats, self.pairs.split("valid").pairs
        scores = {"nats": nats, "perplexity": math.exp(min(700.0, nats))}
        if reading.source_steps is not None and reading.target_steps is not None:
            scores |= {"source_steps": reading.source_steps, "target_steps": reading.target_steps}
        if self.recipe.train.best == "loss":
            return Validation(nats, pairs, scores)
        score = self._bleu(state, report)
        return Validation(-score, pairs, {**scores, "bleu": score})

    def _bleu(self, state: State, report: Report) -> float:
        """BLEU of greedy translations of the validation split."""
        sources, references = split_texts(self.pairs, "valid")
        greedy = self.recipe.translating.model_copy(update={"beam_width": 1})
        translations = translate(
            self._bundle(state),
            sources,
            translating=greedy,
            report=lambda _, done, total: report("validating", done, total),
        )
        return bleu([best[0].text for best in translations], references, lower=True).score

    def write(self, folder: Path, state: State) -> None:
        describe_translator(folder, self._bundle(state))

    def _bundle(self, state: State) -> Translator:
        header = self.pairs.header
        return Translator(
            _translator(state), self.recipe.translating, self.pairs.source, self.pairs.target, header.lower
        )


def _pair(numbers: np.ndarray[Any, Any], row: int) -> str:
    return f"pair {int(numbers[row])}"


def _objective(state: State) -> PairObjective:
    """The objective without its DDP wrapper."""
    objective = getattr(state.trained, "module", state.trained)
    assert isinstance(objective, PairObjective)
    return objective


def _translator(state: State) -> EncoderDecoder:
    assert isinstance(state.model, EncoderDecoder)
    return state.model
