"""segue: sequence models that read on beyond a fixed context.

    hidden, memory = model(tokens, memory)

Names load on first use, so that `import segue` and `segue --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segue.checkpoint import Bundle, TextEncoder, Translator, load, load_translator
    from segue.config import (
        ConvolutionalConfig,
        EncoderConfig,
        EncoderReading,
        HeadConfig,
        KernelConfig,
        Reach,
        Reading,
        RecurrentConfig,
        Seq2SeqConfig,
        UniversalConfig,
        UniversalEncoderConfig,
        UniversalSeq2SeqConfig,
        XLConfig,
    )
    from segue.errors import SegueError
    from segue.infer.session import Session
    from segue.interop.encoders import load_encoder
    from segue.nn.convolutional import ConvolutionalModel
    from segue.nn.encoder import Encoder
    from segue.nn.filter_memory import FilterMemory
    from segue.nn.kernel import KernelModel
    from segue.nn.kv_memory import KVMemory
    from segue.nn.memory import CellMemory, KernelMemory, StateMemory
    from segue.nn.recurrent import RecurrentModel
    from segue.nn.seq2seq import Seq2Seq
    from segue.nn.universal import UniversalTransformer
    from segue.nn.universal_encoder import UniversalEncoder
    from segue.nn.universal_seq2seq import UniversalSeq2Seq
    from segue.nn.xl import TransformerXL
    from segue.presets import preset
    from segue.recipe import (
        EncoderRecipe,
        EncoderTrainConfig,
        PairTrainConfig,
        Recipe,
        TrainConfig,
        TranslationRecipe,
    )
    from segue.training.run import resume, train

__version__ = "0.1.0"

__all__ = [
    "Bundle",
    "CellMemory",
    "ConvolutionalConfig",
    "ConvolutionalModel",
    "Encoder",
    "EncoderConfig",
    "EncoderReading",
    "EncoderRecipe",
    "EncoderTrainConfig",
    "FilterMemory",
    "HeadConfig",
    "KVMemory",
    "KernelConfig",
    "KernelMemory",
    "KernelModel",
    "PairTrainConfig",
    "Reach",
    "Reading",
    "Recipe",
    "RecurrentConfig",
    "RecurrentModel",
    "SegueError",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Session",
    "StateMemory",
    "TextEncoder",
    "TrainConfig",
    "TransformerXL",
    "TranslationRecipe",
    "Translator",
    "UniversalConfig",
    "UniversalEncoder",
    "UniversalEncoderConfig",
    "UniversalSeq2Seq",
    "UniversalSeq2SeqConfig",
    "UniversalTransformer",
    "XLConfig",
    "load",
    "load_encoder",
    "load_translator",
    "preset",
    "resume",
    "train",
]

_HOMES = {
    "Bundle": "segue.checkpoint",
    "CellMemory": "segue.nn.memory",
    "ConvolutionalConfig": "segue.config",
    "ConvolutionalModel": "segue.nn.convolutional",
    "Encoder": "segue.nn.encoder",
    "EncoderConfig": "segue.config",
    "EncoderReading": "segue.config",
    "EncoderRecipe": "segue.recipe",
    "EncoderTrainConfig": "segue.recipe",
    "FilterMemory": "segue.nn.filter_memory",
    "HeadConfig": "segue.config",
    "KVMemory": "segue.nn.kv_memory",
    "KernelConfig": "segue.config",
    "KernelMemory": "segue.nn.memory",
    "KernelModel": "segue.nn.kernel",
    "PairTrainConfig": "segue.recipe",
    "Reach": "segue.config",
    "Reading": "segue.config",
    "Recipe": "segue.recipe",
    "RecurrentConfig": "segue.config",
    "RecurrentModel": "segue.nn.recurrent",
    "SegueError": "segue.errors",
    "Seq2Seq": "segue.nn.seq2seq",
    "Seq2SeqConfig": "segue.config",
    "Session": "segue.infer.session",
    "StateMemory": "segue.nn.memory",
    "TextEncoder": "segue.checkpoint",
    "TrainConfig": "segue.recipe",
    "TransformerXL": "segue.nn.xl",
    "TranslationRecipe": "segue.recipe",
    "Translator": "segue.checkpoint",
    "UniversalConfig": "segue.config",
    "UniversalEncoder": "segue.nn.universal_encoder",
    "UniversalEncoderConfig": "segue.config",
    "UniversalSeq2Seq": "segue.nn.universal_seq2seq",
    "UniversalSeq2SeqConfig": "segue.config",
    "UniversalTransformer": "segue.nn.universal",
    "XLConfig": "segue.config",
    "load": "segue.checkpoint",
    "load_encoder": "segue.interop.encoders",
    "load_translator": "segue.checkpoint",
    "preset": "segue.presets",
    "resume": "segue.training.run",
    "train": "segue.training.run",
}
_PACKAGES = ("checkpoint", "config", "errors", "infer", "interop", "nn", "presets", "recipe", "text")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:  # so that `segue.interop.reference` works after a plain `import segue`
        return import_module(f"segue.{name}")
    raise AttributeError(f"module 'segue' has no attribute '{name}'; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
