"""A small corpus and a small recipe that trains in no time."""

import random
from pathlib import Path

from segue.progress import silent
from segue.recipe import Recipe
from segue.text.pairs import PairsConfig, prepare_pairs
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files

WORDS = "the sea a ship went out and came home again with fish for all who stood there".split()  # noqa: SIM905


def write_texts(folder: Path, documents: int, words: int = 40, seed: int = 0) -> list[Path]:
    """Files of a few lines each."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(documents):
        path = folder / f"{number:03d}.txt"
        text = " ".join(draw.choice(WORDS) + ("\n" if draw.random() < 0.2 else "") for _ in range(words))
        path.write_text(text + "\n")
        paths.append(path)
    return paths


def make_corpus(folder: Path, *, documents: int = 24, words: int = 40, tokenizer: str = "bytes") -> Path:
    paths = write_texts(folder / "texts", documents, words)
    config = PrepareConfig(tokenizer=tokenizer, valid=0.1, test=0.1)
    prepare(from_files("texts", paths), folder / "corpus", config, lambda *_: None)
    return folder / "corpus"


def make_pairs(parent: Path) -> Path:
    """Sentences of one to four words, and themselves backwards."""
    draw, folder = random.Random(0), parent / "pairs"
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))).encode() for _ in range(150)]
    parts = {
        "train": lambda: ((line, line[::-1]) for line in lines[:130]),
        "valid": lambda: ((line, line[::-1]) for line in lines[130:]),
    }
    prepare_pairs(parts, folder, PairsConfig(size=270), silent)
    return folder


def small_recipe(**train: object) -> Recipe:
    """Dropout is on, so that random numbers must come back too."""
    return Recipe(
        model={"vocab": 256, "width": 8, "layers": 2, "heads": 2, "dropout": 0.1, "attention_dropout": 0.1},
        train={
            "lanes": 4,
            "segment": 7,
            "memory": 9,
            "steps": 12,
            "learning_rate": 3e-3,
            "warmup": 3,
            **train,
        },
        reading={"segment": 8, "reach": {"memory": 16}},
    )
