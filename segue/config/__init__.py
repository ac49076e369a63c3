"""All settings, checked when they are built. Imports no torch, so that the command line starts quickly.

A model's config holds what shapes its weights. How far back it reads is in `Reach`, because the weights of a
Transformer-XL do not depend on it.
"""

from segue.config.both_sided import BothSidedConfig
from segue.config.bundles import BundleConfig, EncoderBundleConfig, TranslatorConfig, check_encoder_parts
from segue.config.encoder import EncoderConfig, EncoderReading, HeadConfig, UniversalEncoderConfig
from segue.config.language import (
    ConvolutionalConfig,
    ConvolutionLayer,
    KernelConfig,
    LanguageConfig,
    RecurrentConfig,
    UniversalConfig,
    XLConfig,
    kind_name,
)
from segue.config.layers import ENCODINGS, LayersConfig, PositionEncoding, StepsConfig, VocabularyConfig
from segue.config.reading import KVCache, Reach, Reading
from segue.config.settings import SHORT, Settings, explained
from segue.config.translation import (
    RecurrentSeq2SeqConfig,
    Seq2SeqConfig,
    Translating,
    TranslationConfig,
    UniversalSeq2SeqConfig,
)

__all__ = [
    "ENCODINGS",
    "SHORT",
    "BothSidedConfig",
    "BundleConfig",
    "ConvolutionLayer",
    "ConvolutionalConfig",
    "EncoderBundleConfig",
    "EncoderConfig",
    "EncoderReading",
    "HeadConfig",
    "KVCache",
    "KernelConfig",
    "LanguageConfig",
    "LayersConfig",
    "PositionEncoding",
    "Reach",
    "Reading",
    "RecurrentConfig",
    "RecurrentSeq2SeqConfig",
    "Seq2SeqConfig",
    "Settings",
    "StepsConfig",
    "Translating",
    "TranslationConfig",
    "TranslatorConfig",
    "UniversalConfig",
    "UniversalEncoderConfig",
    "UniversalSeq2SeqConfig",
    "VocabularyConfig",
    "XLConfig",
    "check_encoder_parts",
    "explained",
    "kind_name",
]
