"""One table from a kind of model to all that belongs to it. Imports no torch; the classes are in `nn/models.py`."""

from typing import Any, Literal, NamedTuple

from segue.config import (
    BundleConfig,
    EncoderConfig,
    KernelConfig,
    RecurrentConfig,
    RecurrentSeq2SeqConfig,
    Seq2SeqConfig,
    TranslatorConfig,
    VocabularyConfig,
    XLConfig,
    kind_name,
)


class ModelKind(NamedTuple):
    """What belongs to a kind of model; its class is in `nn/models.py`."""

    config: type[VocabularyConfig]
    task: Literal["language", "translation", "encoding"]
    data: Literal["stream", "pairs", "texts"]  # what it is trained on
    bundle: type[BundleConfig] | type[TranslatorConfig] | None  # the content of its config.json


KINDS = {
    "xl": ModelKind(XLConfig, "language", "stream", BundleConfig),
    "recurrent": ModelKind(RecurrentConfig, "language", "stream", BundleConfig),
    "kernel": ModelKind(KernelConfig, "language", "stream", BundleConfig),
    "seq2seq": ModelKind(Seq2SeqConfig, "translation", "pairs", TranslatorConfig),
    "recurrent-seq2seq": ModelKind(RecurrentSeq2SeqConfig, "translation", "pairs", TranslatorConfig),
    "encoder": ModelKind(EncoderConfig, "encoding", "texts", None),
}
"""All models, by `model.kind`."""


def kind_of(values: dict[str, Any]) -> ModelKind:
    """The kind of model that a recipe or a config.json describes; unknown ones are refused when it is built."""
    return KINDS.get(kind_name(values.get("model")), KINDS["xl"])
