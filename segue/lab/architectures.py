"""Language model architectures with equal parameter counts: Transformers with and without memory, recurrent networks,
convolutions.

All are trained on the same number of tokens of the same text. In the full version each architecture first tries the
same few optimizer settings for a part of the steps, and takes the one with the best validation loss.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from segue.checkpoint import Bundle, load
from segue.config import ConvolutionalConfig, LanguageConfig, Reach, Reading, RecurrentConfig, XLConfig
from segue.footprint import parameters
from segue.lab.experiment import Setting
from segue.lab.trained import Budget, budget, recipe_for, schedule, trained_run
from segue.lab.tuning import Tuned, tuned
from segue.recipe import Recipe

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Transformer-XL": {"encoding": "xl"},
    "XL with Shaw's positions": {"encoding": "shaw"},
    "XL without recurrence": {"encoding": "xl", "memory": 0},
    "vanilla Transformer": {"encoding": "sinusoidal", "memory": 0},
}
"""Transformers by name, with their arguments for `recipe_for`."""

RECURRENT = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}

CONVOLUTIONS: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {
    "QRNN": ("qrnn", ((2, 1),) * 3),
    "GCNN": ("glu", ((6, 1),) * 9),
    "TCN": ("tcn", tuple((3, 2**level) for level in range(5))),
}
"""Gate, and kernel and dilation of each layer. The fields of GCNN and TCN are about those of the published models."""

ARCHITECTURES = (*TRANSFORMERS, *RECURRENT, *CONVOLUTIONS)
"""All architectures by name."""


@dataclass(frozen=True, eq=False)
class Architecture:
    """An architecture with its tuned recipe."""

    name: str
    tuning: Tuned

    def summary(self) -> dict[str, Any]:
        """What the results say of it."""
        return {"parameters": parameters(self.tuning.recipe.model), **self.tuning.summary()}


def tuned_architecture(setting: Setting, name: str) -> Architecture:
    """The architecture with the best of the optimizer settings; in the quick version with the default ones."""
    return Architecture(name, tuned(setting, architecture_recipe(setting, name, budget(setting)), name))


def trained_architecture(setting: Setting, architecture: Architecture, seed: int) -> Bundle:
    """The trained model; trained now unless its run is there already."""
    return load(architecture_run(setting, architecture, seed))


def architecture_run(setting: Setting, architecture: Architecture, seed: int) -> Path:
    """The same, as the run's folder."""
    return trained_run(setting, architecture.tuning.seeded(seed), f"{architecture.name}, seed {seed}")


def architecture_recipe(setting: Setting, name: str, size: Budget) -> Recipe:
    """A recipe within the budget, with as many parameters as its Transformer-XL."""
    base = recipe_for(setting, seed=setting.seed, given=size)
    count, vocab = parameters(base.model), base.model.vocab
    if name in TRANSFORMERS:
        recipe = recipe_for(setting, seed=setting.seed, given=size, **TRANSFORMERS[name])
        return recipe.model_copy(update={"model": with_parameters(recipe.model, count)})
    build: Callable[[int], LanguageConfig] = (
        partial(_recurrent, vocab, RECURRENT[name])
        if name in RECURRENT
        else partial(_convolutional, vocab, *CONVOLUTIONS[name])
    )
    widths = range(2, 8 * base.model.width, 2 if name in RECURRENT else 1)
    return Recipe(
        model=build(nearest_width(build, count, widths)),
        train=schedule(size, seed=setting.seed, memory=1),
        reading=Reading(segment=size.segment, reach=Reach(memory=1)),
    )


def _recurrent(vocab: int, cell: str, width: int) -> LanguageConfig:
    return RecurrentConfig.model_validate({"vocab": vocab, "cell": cell, "layers": 2, "width": width})


def _convolutional(vocab: int, gate: str, layers: tuple[tuple[int, int], ...], width: int) -> LanguageConfig:
    shapes = [(width, kernel, dilation) for kernel, dilation in layers]
    return ConvolutionalConfig.model_validate(
        {"vocab": vocab, "gate": gate, "width": width, "layers": shapes}
    )


def nearest_width(build: Callable[[int], LanguageConfig], count: int, widths: range) -> int:
    """The width whose model has nearly that many parameters."""
    place = bisect_left(widths, count, key=lambda width: parameters(build(width)))
    return min(widths[max(0, place - 1) : place + 1], key=lambda width: abs(parameters(build(width)) - count))


def with_parameters(model: LanguageConfig, count: int) -> LanguageConfig:
    """A Transformer whose feed-forward width makes its parameters as near to `count` as possible."""
    assert isinstance(model, XLConfig)
    more = (count - parameters(model)) / (model.layers * (2 * model.width + 1))
    return model.model_copy(update={"feedforward": model.feedforward + round(more)})
