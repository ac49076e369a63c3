"""A small corpus in WordPiece, and a recipe that pre-trains a small encoder on it in no time."""

from pathlib import Path
from typing import Any

from runs import write_texts
from segue.config import EncoderConfig, EncoderReading, HeadConfig
from segue.recipe import EncoderRecipe, EncoderTrainConfig
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files

VOCAB = 72
SHAPE: dict[str, Any] = {"vocab": VOCAB, "width": 8, "layers": 2, "heads": 2, "max_positions": 24}


def make_wordpiece_corpus(folder: Path, *, documents: int = 30, words: int = 40, **config: Any) -> Path:
    paths = write_texts(folder / "texts", documents, words)
    settings = PrepareConfig(**{"tokenizer": "wordpiece", "size": VOCAB, "valid": 0.1, "test": 0.1, **config})
    prepare(from_files("texts", paths), folder / "corpus", settings, lambda *_: None)
    return folder / "corpus"


def masked_recipe(*, task: Any = None, model: Any = None, **train: Any) -> EncoderRecipe:
    """Dropout is on, so that random numbers must come back too; an epoch of long texts is about twelve steps."""
    shape = {"dropout": 0.1, "attention_dropout": 0.1, **SHAPE, **(model or {})}
    values = {"steps": 12, "batch": 6, "optimizer": "adamw", "learning_rate": 3e-3, "weight_decay": 0.01}
    return EncoderRecipe(
        model=EncoderConfig(**shape),
        task=HeadConfig(task="masked", **(task or {})),
        train=EncoderTrainConfig(**{**values, **train}),
        reading=EncoderReading(max_length=24, pooling="mean"),
    )
