"""Language models of words with equal parameter counts: Transformer-XL, a Transformer without memory, and an LSTM.

All have the same adaptive input and adaptive softmax (clusters of falling frequency, narrower vectors for rarer words),
are trained on the same words, and try the same settings of optimizer and cache.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import torch

from segue.checkpoint import Bundle
from segue.config import LanguageConfig, Reach, Reading, RecurrentConfig, XLConfig
from segue.footprint import parameters
from segue.infer.adapt import Cache, evaluate_caches
from segue.infer.evaluate import evaluate
from segue.lab.architectures import nearest_width, with_parameters
from segue.lab.experiment import Results, Setting
from segue.lab.trained import Budget, recipe_for, schedule
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.progress import Report
from segue.recipe import Recipe

SIDES = {
    "Transformer-XL": "a memory as long as the segment, relative positions",
    "Adaptive input": "a Transformer that reads isolated segments, sinusoids",
    "LSTM": "two layers, a state that is carried on",
}
"""The models by name, with what they are. Adaptive input is named as its published row."""

CUTOFFS, DIVISOR = (2000, 10_000), 2
"""Where clusters of rarer words begin, and how many times narrower each one's vectors are than those before."""


def word_recipe(setting: Setting, name: str, size: Budget) -> Recipe:
    """A recipe within the budget, with as many parameters as its Transformer-XL."""
    base = _transformer(setting, size, "xl", size.segment)
    count = parameters(base.model)
    if name == "Transformer-XL":
        return base
    if name == "Adaptive input":
        recipe = _transformer(setting, size, "sinusoidal", 0)
        return recipe.model_copy(update={"model": with_parameters(recipe.model, count)})
    build: Callable[[int], LanguageConfig] = partial(_lstm, base.model)
    return Recipe(
        model=build(nearest_width(build, count, range(2, 8 * size.width, 2))),
        train=schedule(size, seed=setting.seed, memory=1),
        reading=Reading(segment=size.segment, reach=Reach(memory=1)),
    )


def _transformer(setting: Setting, size: Budget, encoding: str, memory: int) -> Recipe:
    recipe = recipe_for(setting, seed=setting.seed, encoding=encoding, memory=memory, given=size)
    cutoffs = [edge for edge in CUTOFFS if edge < recipe.model.vocab]
    model = XLConfig(**{**recipe.model.model_dump(), "cutoffs": cutoffs, "divisor": DIVISOR})
    return recipe.model_copy(update={"model": model})


def _lstm(like: LanguageConfig, width: int) -> LanguageConfig:
    """Two layers between embeddings of the same shape as those of another model."""
    return RecurrentConfig(
        vocab=like.vocab,
        width=width,
        embedding=like.embedding,
        cutoffs=like.cutoffs,
        divisor=like.divisor,
        layers=2,
    )


MODES = ("static", "recent words", "neural cache")
"""No cache; a cache that gives every recent word the same weight, for comparison; a cache that looks at states."""

Chosen = dict[str, Cache]
"""The cache of each mode."""

FLAT = 1e-9
"""A flatness so small that all states in the cache count alike."""

FLATNESS, WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (0.02, 0.05, 0.1, 0.2, 0.3)
"""The settings of caches that are tried."""


def tuned_caches(setting: Setting, model: LanguageModel, reading: Reading, tokens: int) -> Chosen:
    """The settings of each mode with the lowest validation loss."""
    flatness, weights = ((0.1, 0.3), (0.05,)) if setting.quick else (FLATNESS, WEIGHTS)
    tries = {
        "static": [Cache(weight=0)],
        "recent words": [Cache(flatness=FLAT, weight=weight) for weight in weights],
        "neural cache": [Cache(flatness=flat, weight=weight) for flat, weight in product(flatness, weights)],
    }
    caches = [cache for mode in MODES for cache in tries[mode]]
    scores = evaluate_caches(model, setting.stream("valid"), reading, caches, limit=tokens)
    nats = dict(zip(caches, (score.nats for score in scores), strict=True))
    return {mode: min(tries[mode], key=nats.__getitem__) for mode in MODES}


def perplexities(
    setting: Setting, model: LanguageModel, reading: Reading, chosen: Chosen, limits: Mapping[str, int]
) -> Results:
    """The perplexity in each mode, of so many words of each split."""

    def told(split: str) -> Report:
        return lambda _task, done, total: setting.report(f"reading {split}", done, total)

    caches = [chosen[mode] for mode in MODES]
    return {
        split: [
            score.perplexity
            for score in evaluate_caches(
                model, setting.stream(split), reading, caches, limit=limit, report=told(split)
            )
        ]
        for split, limit in limits.items()
    }


def untrained(setting: Setting, recipe: Recipe, tokens: int) -> list[float]:
    """Test perplexities of fresh weights, with caches that were tuned for them."""
    torch.manual_seed(setting.seed)
    model = build_language_model(recipe.model).eval()
    caches = tuned_caches(setting, model, recipe.reading, tokens)
    figures: list[float] = perplexities(setting, model, recipe.reading, caches, {"test": tokens})["test"]
    return figures


def swept(setting: Setting, bundle: Bundle, memories: Sequence[int], tokens: int) -> Results:
    """Perplexity by memory length at evaluation, without a clamp and with the one that is best on validation words."""
    longest = bundle.reading.segment + bundle.reading.reach.memory - 1  # the longest distance in training
    clamps = [longest // 2, longest]

    def read(memory: int, clamp: int | None, split: str) -> float:
        reading = Reading(segment=bundle.reading.segment, reach=Reach(memory=memory, clamp=clamp))
        return evaluate(bundle.model, setting.stream(split), reading, limit=tokens).perplexity

    columns: Results = {name: [] for name in ("valid", "test", "valid clamped", "test clamped", "clamps")}
    for number, memory in enumerate(memories):
        setting.report("memory lengths", number, len(memories))
        validation = {clamp: read(memory, clamp, "valid") for clamp in clamps}
        best = min(validation, key=validation.__getitem__)
        row = (read(memory, None, "valid"), read(memory, None, "test"), validation[best])
        for name, value in zip(columns, (*row, read(memory, best, "test"), best), strict=True):
            columns[name].append(value)
    return columns
