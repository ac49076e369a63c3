"""The content of a bundle's config.json."""

from typing import Literal, Self

from pydantic import model_validator

from segue.config.encoder import EncoderConfig, EncoderReading, HeadConfig
from segue.config.language import LanguageConfig
from segue.config.reading import Reading
from segue.config.settings import Settings
from segue.config.translation import Translating, TranslationConfig


class BundleConfig(Settings):
    """The content of a bundle's config.json."""

    format: Literal["segue-bundle-1"] = "segue-bundle-1"
    model: LanguageConfig
    reading: Reading


class TranslatorConfig(Settings):
    """The content of a translator bundle's config.json."""

    format: Literal["segue-translator-1"] = "segue-translator-1"
    model: TranslationConfig
    translating: Translating
    lower: bool = False


class EncoderBundleConfig(Settings):
    """The content of an encoder bundle's config.json."""

    format: Literal["segue-encoder-1"] = "segue-encoder-1"
    model: EncoderConfig
    head: HeadConfig | None = None
    reading: EncoderReading

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_encoder_parts(self.model, self.head, self.reading)
        return self


def check_encoder_parts(model: EncoderConfig, head: HeadConfig | None, reading: EncoderReading) -> None:
    """Refuse texts longer than the positions, and a head of a pooled text without a pooler."""
    if reading.max_length > model.max_positions:
        raise ValueError(
            f"max_length {reading.max_length} is more than the encoder's {model.max_positions} positions"
        )
    if head is not None and head.pooled and not model.pooler:
        raise ValueError(f"a head of task {head.task!r} needs a pooler, and the encoder has none")
