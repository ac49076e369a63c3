"""Small encoders for tests: random weights, and a vocabulary of a few pieces."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from segue.checkpoint import TextEncoder
from segue.config import EncoderConfig, EncoderReading, HeadConfig
from segue.nn.task_encoder import TaskEncoder
from segue.text.wordpiece import WordPiece, read_wordpiece

RECORDED = Path(__file__).parent / "reference" / "encoders"
"""What Hugging Face's models computed, by `record.py`."""

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the animal did not cross street . un ##tir ##ed".split()  # noqa: SIM905
SHAPE: dict[str, Any] = {
    "vocab": 15,
    "width": 8,
    "layers": 2,
    "heads": 2,
    "feedforward": 12,
    "max_positions": 9,
}


def wordpiece(folder: Path) -> WordPiece:
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    return read_wordpiece(folder / "vocab.txt")


def small_encoder(folder: Path, head: HeadConfig | None = None, **shape: object) -> TextEncoder:
    """An encoder in evaluation mode whose weights are large enough for differences to show."""
    torch.manual_seed(0)
    model = TaskEncoder(EncoderConfig(**{**SHAPE, **shape}), head)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return TextEncoder(
        model.eval(), wordpiece(folder), EncoderReading(max_length=9, pooling="mean", normalize=True)
    )


def small_bert(folder: Path) -> Path:
    """The recorded small BERT as Hugging Face saves it, with a vocabulary."""
    with safe_open(RECORDED / "bert-pretraining.safetensors", "pt") as file:
        config = file.metadata()["config"]
        weights = {name: file.get_tensor(name) for name in file.keys() if name.startswith("weights.")}  # noqa: SIM118
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    save_file({name.removeprefix("weights."): t for name, t in weights.items()}, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    return folder
