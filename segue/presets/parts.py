"""What presets are made of: a preset, and the settings that several of them share."""

from typing import Any

from segue.config import Reach, Reading, Settings
from segue.recipe import AnyRecipe, TrainConfig


class Preset(Settings):
    """A recipe, its data set, and the published result."""

    recipe: AnyRecipe
    data: str
    published: str
    note: str = ""


def reading(segment: int, memory: int, clamp: int | None) -> Reading:
    """The evaluation of the authors' PyTorch code: memory begins empty, every token attends to `memory` keys."""
    return Reading(segment=segment, reach=Reach(memory=memory, clamp=clamp, span=memory))


def tf_reading(segment: int, memory: int, clamp: int | None) -> Reading:
    """The evaluation of the authors' TensorFlow code: memory begins as zeros, and a token also attends to itself."""
    return Reading(segment=segment, reach=Reach(memory=memory, clamp=clamp, span=memory + 1, initial="zeros"))


def on_two_cores(steps: int, **changes: Any) -> TrainConfig:
    """Minutes of training: a short warm-up, then a decay to 2 % of the learning rate."""
    often = min(500, steps // 4)
    return TrainConfig(
        steps=steps,
        warmup=steps // 20,
        floor=0.02,
        beta2=0.98,
        clip=1.0,
        validate_every=often,
        save_every=often,
        **changes,
    )
