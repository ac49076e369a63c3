"""A preset of an encoder, fitted to the encoder that it begins with and to labelled examples."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.errors import ConfigError

if TYPE_CHECKING:
    from segue.checkpoint import TextEncoder

Values = dict[str, Any]


def fitted_to_encoder(values: Values, encoder: "TextEncoder") -> Values:
    """The values with the encoder's shape, and its reading: of the preset, only the length of texts is kept.

    An encoder without a pooler gets a fresh one, in case that its task needs it.
    """
    model = {**encoder.model.config.model_dump(mode="json"), "pooler": True}
    length = min(values["reading"]["max_length"], encoder.model.config.max_positions)
    return {**values, "model": model, "reading": {**encoder.reading.model_dump(), "max_length": length}}


def learns_examples(values: Values) -> bool:
    """Whether the task is learned from labelled examples, and not from masked words of a corpus."""
    return bool(values["task"]["task"] != "masked")


def fitted_to_examples(values: Values, data: Path, *, from_nothing: bool) -> Values:
    """The values with the labels of the examples; without an encoder to begin with, also their vocabulary."""
    from segue.text.examples import open_examples

    header = open_examples(data).header
    task, head = values["task"], header.head
    texts = ("text", "score")
    same = task["task"] == head.task or (task["task"] in texts and head.task in texts)
    if not same or task["pairs"] != head.pairs:
        raise ConfigError(
            f"{data} holds examples that were prepared with --task {header.task}; use the preset {header.task}-cpu"
        )
    model = {**values["model"], "vocab": header.vocab} if from_nothing else values["model"]
    return {**values, "model": model, "task": head.model_dump(mode="json")}
