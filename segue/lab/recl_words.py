"""How much context models of words use: RECL on a corpus such as WikiText-2, in the unit of the published table."""

from functools import partial

from segue.lab import words
from segue.lab.context_groups import Plan, measure_groups
from segue.lab.experiment import Experiment, Results, Setting
from segue.lab.recl import FULL, QUICK, one_attention_length
from segue.lab.recl_page import FIRST, draw, tell
from segue.lab.trained import Budget
from segue.lab.word_models import word_recipe
from segue.recipe import Recipe

GROUPS = {"group 1": (FIRST, "LSTM"), "group 2": (FIRST, "vanilla Transformer")}

OWN = (16, 64, 96, 256)
"""Own tokens of the controls: 96, the LSTM's RECL, among them, so that its control has no more than it."""


def measure(setting: Setting) -> Results:
    plan = Plan(QUICK if setting.quick else FULL, GROUPS, recipe_of, unit="perplexity", own=OWN)
    return measure_groups(words.of_words(setting), plan)


def recipe_of(setting: Setting, name: str, size: Budget) -> Recipe:
    """A model with adaptive input and softmax."""
    side = {"vanilla Transformer": "Adaptive input"}.get(name, name)
    return word_recipe(setting, side, one_attention_length(name, size))


EXPERIMENT = Experiment(
    name="recl_words",
    claim="On words too, Transformer-XL uses a much longer context than an LSTM and a vanilla Transformer.",
    measure=measure,
    tell=tell,
    draw=partial(draw, name="recl_words"),
    inputs=words.inputs,
    skipped=words.skipped,
)
