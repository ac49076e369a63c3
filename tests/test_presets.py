"""The published recipes have the published numbers of parameters."""

import pytest

from segue.config import XLConfig
from segue.errors import SegueError
from segue.footprint import kept_bytes, parameters, reading_bytes, training_bytes
from segue.presets import PRESETS, preset
from segue.recipe import Recipe, TrainConfig
from support import shape

COUNTS = {
    "enwik8-12l": 41_055_436,
    "enwik8-24l": 277_231_820,
    "text8-24l": 277_050_395,
    "wt103-standard": 151_107_538,
    "wt103-large": 285_170_506,
    "lm1b-large": 838_078_041,
    "transformer-base": 63_082_496,
    "transformer-big": 214_245_376,
}


def test_every_published_preset_is_counted() -> None:
    assert {name for name, chosen in PRESETS.items() if chosen.published} == COUNTS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_the_published_number_of_parameters(name: str) -> None:
    assert parameters(preset(name).recipe.model) == COUNTS[name]


@pytest.mark.parametrize(
    ("layers", "biases", "count"),
    [
        (16, "shared", 257_889_098),
        (16, "per-layer", 257_919_818),
        (18, "per-layer", 285_205_322),
    ],
)
def test_what_the_paper_may_have_meant_by_257_million(layers: int, biases: str, count: int) -> None:
    large = preset("wt103-large").recipe.model
    assert parameters(large.model_copy(update={"layers": layers, "biases": biases})) == count
    assert f"{count:,}" in preset("wt103-large").note


def test_evaluation_as_published() -> None:
    settings = {
        name: chosen.recipe.reading
        for name, chosen in PRESETS.items()
        if chosen.published and isinstance(chosen.recipe, Recipe)
    }
    reads = {name: (read.segment, read.reach.memory, read.reach.clamp) for name, read in settings.items()}
    assert reads == {
        "enwik8-12l": (80, 2100, 820),
        "enwik8-24l": (128, 3800, 1000),
        "text8-24l": (128, 3800, 1000),
        "wt103-standard": (64, 640, 400),
        "wt103-large": (128, 1600, 1000),
        "lm1b-large": (32, 128, None),
    }


def test_an_unknown_preset_is_told_its_neighbour() -> None:
    with pytest.raises(SegueError, match="no preset 'enwik8-12'; did you mean 'enwik8-12l'"):
        preset("enwik8-12")


def test_what_a_step_keeps_is_counted_without_allocating() -> None:
    """Calculated by hand for one layer without dropout masks: proportional to lanes and layers."""
    train = TrainConfig(lanes=2, segment=6, memory=4, steps=1)

    def kept(lanes: int, **changes: object) -> int:
        return kept_bytes(shape(**changes), train.model_copy(update={"lanes": lanes}))

    lanes = [kept(number) for number in (1, 2, 3)]
    assert lanes[2] - lanes[1] == lanes[1] - lanes[0] > 0
    layers = [kept(2, layers=number) for number in (1, 2, 5)]
    assert layers[2] - layers[1] == 3 * (layers[1] - layers[0]) > 0


def test_the_footprint_of_a_known_model() -> None:
    recipe = preset("enwik8-12l").recipe
    config: XLConfig = recipe.model
    keys_values = 2100 * 12 * 2 * 512
    assert reading_bytes(config, recipe.reading) == 4 * (41_055_436 + keys_values)
    assert training_bytes(recipe) > 16 * 41_055_436
