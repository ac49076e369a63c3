"""One table from a kind of model to all that belongs to it. Imports no torch; the classes are in `nn/models.py`."""

from typing import Any, Literal, NamedTuple

from segue.config import (
    BundleConfig,
    ConvolutionalConfig,
    EncoderBundleConfig,
    EncoderConfig,
    KernelConfig,
    RecurrentConfig,
    RecurrentSeq2SeqConfig,
    Seq2SeqConfig,
    TranslatorConfig,
    UniversalConfig,
    UniversalEncoderConfig,
    UniversalSeq2SeqConfig,
    VocabularyConfig,
    XLConfig,
    kind_name,
)

TaskKind = Literal["language", "translation", "encoding"]


class ModelKind(NamedTuple):
    """What belongs to a kind of model; its class is in `nn/models.py`."""

    config: type[VocabularyConfig]
    task: TaskKind
    data: Literal["stream", "pairs", "texts"]  # what it is trained on
    bundle: type[BundleConfig | TranslatorConfig | EncoderBundleConfig] | None  # what its config.json holds


KINDS = {
    "xl": ModelKind(XLConfig, "language", "stream", BundleConfig),
    "recurrent": ModelKind(RecurrentConfig, "language", "stream", BundleConfig),
    "kernel": ModelKind(KernelConfig, "language", "stream", BundleConfig),
    "universal": ModelKind(UniversalConfig, "language", "stream", BundleConfig),
    "convolutional": ModelKind(ConvolutionalConfig, "language", "stream", BundleConfig),
    "seq2seq": ModelKind(Seq2SeqConfig, "translation", "pairs", TranslatorConfig),
    "recurrent-seq2seq": ModelKind(RecurrentSeq2SeqConfig, "translation", "pairs", TranslatorConfig),
    "universal-seq2seq": ModelKind(UniversalSeq2SeqConfig, "translation", "pairs", TranslatorConfig),
    "encoder": ModelKind(EncoderConfig, "encoding", "texts", EncoderBundleConfig),
    "universal-encoder": ModelKind(UniversalEncoderConfig, "encoding", "texts", None),
}
"""All models, by `model.kind`."""


def kind_of(values: dict[str, Any]) -> ModelKind:
    """The kind of model that a recipe or a config.json describes; unknown ones are refused when it is built."""
    return KINDS.get(kind_name(values.get("model")), KINDS["xl"])
