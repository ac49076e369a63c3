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
        if self.reading.max_length > self.model.max_positions:
            raise ValueError(
                f"max_length {self.reading.max_length} is more than the encoder's {self.model.max_positions} positions"
            )
        if self.head is not None and self.head.pooled and not self.model.pooler:
            raise ValueError(f"a head of task {self.head.task!r} needs a pooler, and the encoder has none")
        return self
