"""How much context architectures use: relative effective context length (RECL) as published, and by mean gains."""

from dataclasses import replace
from functools import partial

from segue.lab.architectures import TRANSFORMERS, architecture_recipe
from segue.lab.context_groups import Plan, Sizes, measure_groups
from segue.lab.experiment import Experiment, Results, Setting
from segue.lab.recl_page import FIRST, draw, tell
from segue.lab.trained import Budget
from segue.recipe import Recipe

GROUPS = {
    "group 1": (FIRST, "QRNN", "LSTM"),
    "group 2": (FIRST, "XL with Shaw's positions", "XL without recurrence", "vanilla Transformer"),
    "convolutions": (FIRST, "GCNN", "TCN"),
}
"""The groups of the published table, in its order; convolutions have one of their own."""

QUICK = Sizes(
    Budget(width=48, layers=2, heads=2, lanes=8, segment=32, steps=80),
    longest=128,
    blocks=24,
    size=16,
    resamples=40,
)
FULL = Sizes(
    Budget(width=192, layers=5, heads=3, lanes=16, segment=128, steps=900),
    longest=1024,
    blocks=128,
    size=64,
    resamples=200,
)


def measure(setting: Setting) -> Results:
    return measure_groups(setting, Plan(QUICK if setting.quick else FULL, GROUPS, recipe_of))


def recipe_of(setting: Setting, name: str, size: Budget) -> Recipe:
    return architecture_recipe(setting, name, one_attention_length(name, size))


def one_attention_length(name: str, size: Budget) -> Budget:
    """The budget with segments as long as segment and memory together for a model that reads isolated ones."""
    if TRANSFORMERS.get(name, {}).get("memory") == 0:
        return replace(size, segment=2 * size.segment, lanes=size.lanes // 2)
    return size


EXPERIMENT = Experiment(
    name="recl",
    claim="Transformer-XL uses a much longer context than recurrent networks and vanilla Transformers.",
    measure=measure,
    tell=tell,
    draw=partial(draw, name="recl"),
    version=3,
)
