"""What the presets weigh, calculated beforehand: to calculate it takes torch, and torch takes seconds to import.

`footprint.py` calculates it, `tests/record_sizes.py` writes sizes.json, and a test holds that it is up to date. The
sizes of a recipe that has changed since are not known.
"""

import json
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from segue.recipe import EncoderRecipe, Recipe, TranslationRecipe


class Sizes(NamedTuple):
    """Of a model in float32."""

    parameters: int
    training_bytes: int
    reading_bytes: int


def recipe_digest(recipe: Recipe | TranslationRecipe | EncoderRecipe) -> str:
    """Tells one recipe from another."""
    return sha256(recipe.model_dump_json().encode()).hexdigest()[:16]


def known_sizes(recipe: Recipe | TranslationRecipe | EncoderRecipe) -> Sizes | None:
    """The recorded sizes of a preset's recipe; None for another recipe."""
    sizes = _recorded().get(recipe_digest(recipe))
    return None if sizes is None else Sizes(*sizes)


@cache
def _recorded() -> dict[str, list[int]]:
    recorded: dict[str, list[int]] = json.loads(
        files("segue.presets").joinpath("sizes.json").read_text("utf-8")
    )
    return recorded
