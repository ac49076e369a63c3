"""Training a language model: segments of all lanes in order, with the memory carried from segment to segment.

Letters: B lanes, T tokens in the segment.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segue.checkpoint import Bundle, describe_bundle
from segue.config import Reading
from segue.distributed import ALONE, Ranks, set_gradient_sync
from segue.footprint import training_flops
from segue.infer.evaluate import Score, evaluate
from segue.nn.language import LanguageModel
from segue.nn.memory import Memory
from segue.nn.models import build_language_model
from segue.progress import Report
from segue.recipe import Recipe
from segue.text.corpus import Corpus
from segue.text.lanes import Lanes, Segment
from segue.training.intermediate import objective_of
from segue.training.loop import MicroBatch, Validation
from segue.training.state import State, fresh_state
from segue.training.weights import initial_model, is_sharded


@dataclass(frozen=True, eq=False)
class LanguageTask:
    """Train a language model on a corpus."""

    recipe: Recipe
    corpus: Corpus
    device: torch.device
    ranks: Ranks = ALONE
    objective: Callable[[LanguageModel], nn.Module] | None = None  # its forward returns an ObjectiveOutput

    def fresh(self, model: nn.Module | None = None) -> State:
        """The initial state of a run, with fresh weights or those of a model."""
        train = self.recipe.train
        weights = None if model is None else model.state_dict()
        build = partial(build_language_model, self.recipe.model)
        objective = self.objective or objective_of(train)
        built, trained = initial_model(build, objective, weights, train, self.device, self.ranks)
        state = fresh_state(built, trained, train, self.ranks)
        lanes = train.lanes // train.accumulate // self.ranks.world_size
        state.memories = [built.start(lanes=lanes, reach=train.reach) for _ in range(train.accumulate)]
        return state

    def metadata(self) -> dict[str, Any]:
        train, split = self.recipe.train, self.corpus.header.splits["train"]
        return {
            "tokens_per_step": train.lanes * train.segment,
            "flops_per_step": training_flops(self.recipe.model, train),
            "bytes_per_token": split.bytes / split.tokens if self.corpus.header.lossless else None,
        }

    def micro_batches(self, state: State) -> Iterator[MicroBatch]:
        """The next segment of this rank's lanes, `accumulate` groups of lanes one after another."""
        train, own = self.recipe.train, self.ranks.share(self.recipe.train.lanes)
        lanes = Lanes(self.corpus.stream("train"), train.lanes, train.documents, own)
        segment = lanes.segment(state.counters.position, train.segment)
        for group, some in enumerate(_lane_groups(segment, train.accumulate)):
            set_gradient_sync(state.trained, group + 1 == train.accumulate)
            with self._precision():
                nats, memory, auxiliary = state.trained(some, state.memories[group], state.counters.step)
            counted = nats[:, train.segment // 2 :] if train.loss == "half" else nats
            exact = counted.to(torch.promote_types(counted.dtype, torch.float32))
            yield MicroBatch(
                exact.mean() / train.accumulate,
                counted,
                partial(_lane, own.start + group * len(nats)),
                None if auxiliary is None else auxiliary / train.accumulate,
            )
            state.memories[group] = memory
        state.count(position=state.counters.position + train.segment)

    def _precision(self) -> Any:
        if self.recipe.train.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def validate(self, state: State, report: Report) -> Validation:
        """Score the validation split, with a new memory; the memory of training is left as it is."""
        train = self.recipe.train
        reading = Reading(segment=train.segment, reach=train.reach)
        score: Score = evaluate(
            _language_model(state),
            self.corpus.stream("valid"),
            reading,
            limit=train.validate_tokens,
            documents=train.documents,
            read=partial(_read_sharded, state.trained) if is_sharded(train, self.ranks) else None,
            report=lambda _, done, total: report("validating", done, total),
        )
        nats = score.nats / score.tokens
        scores = {"nats": nats, "perplexity": math.exp(min(700.0, nats))}
        if score.bytes is not None:
            scores["bits_per_byte"] = score.bits_per_byte
        if score.mean_steps is not None:
            scores["mean_steps"] = score.mean_steps
        return Validation(nats, score.tokens, scores)

    def write(self, folder: Path, state: State) -> None:
        describe_bundle(folder, Bundle(_language_model(state), self.recipe.reading, self.corpus.tokenizer))


def _lane(first: int, row: int) -> str:
    return f"lane {first + row}"


def _read_sharded(trained: nn.Module, segment: Segment, memory: Memory) -> tuple[Tensor, Memory]:
    """Score a segment with the objective's `forward`, because FSDP gathers the weights for that only."""
    nats, after, _ = trained(segment, memory)
    return nats, after


def _language_model(state: State) -> LanguageModel:
    assert isinstance(state.model, LanguageModel)
    return state.model


def _lane_groups(segment: Segment, count: int) -> Iterator[Segment]:
    """The segment in `count` groups of lanes, one for each micro-batch."""
    size = len(segment.tokens) // count
    for first in range(0, len(segment.tokens), size):
        rows = slice(first, first + size)
        starts = None if segment.starts is None else segment.starts[rows]
        yield Segment(segment.tokens[rows], segment.targets[rows], starts)
