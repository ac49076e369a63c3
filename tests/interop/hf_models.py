"""Small random models of every kind, for folders of Hugging Face's library."""

from typing import Any

import torch

from segue.checkpoint import Bundle, Translator
from segue.config import (
    ConvolutionalConfig,
    HeadConfig,
    KernelConfig,
    Reach,
    Reading,
    RecurrentConfig,
    RecurrentSeq2SeqConfig,
    Seq2SeqConfig,
    Translating,
    UniversalConfig,
    UniversalSeq2SeqConfig,
    XLConfig,
)
from segue.nn.models import build_language_model, build_translator
from segue.text.tokenizer import ByteTokenizer, word_tokenizer

SMALL: dict[str, Any] = {"vocab": 256, "width": 16, "heads": 2}
LANGUAGE: dict[str, Any] = {
    "xl": XLConfig(**SMALL, layers=2),
    "adaptive": XLConfig(**SMALL, layers=2, cutoffs=(50, 100), divisor=2),
    "untied": XLConfig(**SMALL, layers=2, tied=False, encoding="rotary"),
    "without memory": XLConfig(**SMALL, layers=2, encoding="sinusoidal"),
    "recurrent": RecurrentConfig(vocab=256, width=16, layers=2),
    "kernel": KernelConfig(**SMALL, layers=2),
    "universal": UniversalConfig(**SMALL, steps=3),
    "convolutional": ConvolutionalConfig(vocab=256, width=16),
}
WORDS = ["<unk>", *(f"w{number}" for number in range(30))]
MORE_WORDS = [*WORDS, "x", "y"]
SIDES: dict[str, Any] = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
TRANSLATION: dict[str, Any] = {
    "one vocabulary": Seq2SeqConfig(vocab=33, **SIDES),
    "two vocabularies": Seq2SeqConfig(vocab=33, source_vocab=35, encoding="xl", norm="pre", **SIDES),
    "recurrent": RecurrentSeq2SeqConfig(vocab=33, width=16),
    "universal": UniversalSeq2SeqConfig(vocab=33, width=16, heads=2, steps=2),
}
HEADS = [
    None,
    HeadConfig(task="masked"),
    HeadConfig(task="masked", next_sentence=True),
    HeadConfig(task="text", labels=("a", "b", "c")),
    HeadConfig(task="tags", labels=("O", "B")),
    HeadConfig(task="span"),
    HeadConfig(task="score"),
]


def language_bundle(kind: str) -> Bundle:
    model = shaken(build_language_model(LANGUAGE[kind]))
    reach = Reach(memory=0, positions="restart") if kind == "without memory" else Reach(memory=16)
    return Bundle(model, Reading(segment=8, reach=reach), ByteTokenizer())


def translator(kind: str) -> Translator:
    config = TRANSLATION[kind]
    target = word_tokenizer(WORDS)
    source = word_tokenizer(MORE_WORDS) if config.source_vocab else target
    model = shaken(build_translator(config))
    return Translator(model, Translating(beam_width=1, longest=12), source, target, lower=True)


def shaken(model: Any) -> Any:
    """The model with weights large enough for differences to show, biases too."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    return model.eval()
