"""The configs of our models among Hugging Face's: what a bundle's config.json holds, and the ids of symbols."""

from typing import Any

from transformers import PreTrainedConfig

from segue.config import BundleConfig, TranslatorConfig
from segue.errors import ConfigError
from segue.interop.hf_folder import LANGUAGE, TRANSLATOR


class SegueConfig(PreTrainedConfig):
    """A language model: `model` and `reading` are those of a bundle's config.json, checked when they are given."""

    model_type = LANGUAGE
    model: dict[str, Any] | None = None
    reading: dict[str, Any] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    tie_word_embeddings: bool = (
        False  # a tied weight is one weight in our models, which the library need not tie
    )

    def __post_init__(self, **others: Any) -> None:
        if self.model is not None:
            _ = self.content
        super().__post_init__(**others)

    @property
    def content(self) -> BundleConfig:
        """Model and reading with their types."""
        return BundleConfig(**_given(model=self.model, reading=self.reading))

    @property
    def vocab_size(self) -> int:
        return int(self.content.model.vocab)

    @property
    def hidden_size(self) -> int:
        return int(self.content.model.width)

    @property
    def num_hidden_layers(self) -> int:
        return int(getattr(self.content.model, "layers", 1))


class SegueSeq2SeqConfig(PreTrainedConfig):
    """A translator: `model`, `translating` and `lower` are those of its bundle's config.json."""

    model_type = TRANSLATOR
    model: dict[str, Any] | None = None
    translating: dict[str, Any] | None = None
    lower: bool = False
    is_encoder_decoder: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **others: Any) -> None:
        if self.model is not None:
            _ = self.content
        super().__post_init__(**others)

    @property
    def content(self) -> TranslatorConfig:
        """Model and search with their types."""
        return TranslatorConfig(**_given(model=self.model, translating=self.translating), lower=self.lower)

    @property
    def vocab_size(self) -> int:
        return int(self.content.model.vocab)

    @property
    def hidden_size(self) -> int:
        return int(self.content.model.width)

    @property
    def num_hidden_layers(self) -> int:
        return int(getattr(self.content.model, "decoder_layers", 1))


def _given(**parts: dict[str, Any] | None) -> dict[str, Any]:
    """The parts, all of which must be there."""
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise ConfigError(
            f"this config has no {' and no '.join(missing)}; open a folder that `segue export --to hf` wrote"
        )
    return dict(parts)
