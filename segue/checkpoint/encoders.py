"""Bundles of encoders: BERT's kind, with a WordPiece tokenizer and, for a task, its head."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from segue.checkpoint.files import CONFIG, config_of, load_weights, save_model, verify, write_json
from segue.checkpoint.runs import read_model
from segue.config import EncoderBundleConfig, EncoderConfig, EncoderReading
from segue.errors import BundleError
from segue.kinds import kind_of
from segue.nn.packed_encoder import PackedEncoder
from segue.nn.task_encoder import TaskEncoder
from segue.text.corpus import TOKENIZER
from segue.text.wordpiece import WordPiece, read_wordpiece

if TYPE_CHECKING:
    from segue.infer.answer import Answered
    from segue.infer.classify import Classified
    from segue.infer.embed import EncodedTexts
    from segue.infer.fill import Guess


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """An encoder with its tokenizer and the settings to read texts with it."""

    model: TaskEncoder
    tokenizer: WordPiece
    reading: EncoderReading
    _engines: list[PackedEncoder] = field(default_factory=list, init=False, repr=False)

    def engine(self) -> PackedEncoder:
        """The engine that reads with the present weights. It is kept, because making it takes time."""
        if not self._engines or self._engines[0].outdated:
            self._engines[:] = [PackedEncoder(self.model.encoder)]
        return self._engines[0]

    def __call__(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> "EncodedTexts":
        """The states of texts, or of texts and `pairs`: tokenized, truncated to `max_length` tokens, padded."""
        from segue.infer.embed import encode_texts, paired

        return encode_texts(
            self,
            paired(texts, pairs),
            max_length=max_length,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )

    def embed(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> Tensor:
        """(B, C) A vector for each text, pooled and normalised as `reading` says."""
        from segue.infer.embed import embed_texts, paired

        return embed_texts(self, paired(texts, pairs))

    def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
    ) -> "list[Classified]":
        """The label of each text, or of texts and `pairs`, with the probabilities of all labels."""
        from segue.infer.classify import classify
        from segue.infer.embed import paired

        return classify(self, paired(texts, pairs))

    def score(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> list[float]:
        """The score of each text, or of texts and `pairs`, such as their similarity."""
        from segue.infer.classify import score
        from segue.infer.embed import paired

        return score(self, paired(texts, pairs))

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tag of each word of each sentence; a sentence is a list of words."""
        from segue.infer.tag import tag

        return tag(self, sentences)

    def fill(self, texts: Sequence[str], top: int = 5) -> "list[list[list[Guess]]]":
        """For each text and each of its [MASK]s, the `top` likeliest pieces with their probabilities."""
        from segue.infer.fill import fill

        return fill(self, texts, top)

    def answer(
        self, question: str, context: str, *, top: int = 1, threshold: float | None = None
    ) -> "Answered":
        """The `top` best spans of a context for a question; its `text` is the best, or empty for "no answer"."""
        from segue.infer.answer import answer

        return answer(self, [(question, context)], top=top, threshold=threshold)[0]

    def save(self, path: Path | str) -> None:
        """Write the bundle. An existing bundle is replaced."""
        save_model(path, self.model, lambda folder: describe_encoder(folder, self))


def describe_encoder(folder: Path, encoder: TextEncoder) -> None:
    """Write the files of an encoder's bundle except its weights into a folder."""
    config = EncoderBundleConfig(model=encoder.model.config, head=encoder.model.task, reading=encoder.reading)
    write_json(folder / CONFIG, config.model_dump(mode="json"))
    (folder / TOKENIZER).write_text(encoder.tokenizer.json(), encoding="utf-8")


def load_encoder_bundle(path: Path | str) -> TextEncoder:
    """Load an encoder's bundle, or the best checkpoint of its run; every byte and every tensor is verified."""
    return read_model(path, partial(_load_encoder, path))


def _load_encoder(path: Path | str, folder: Path) -> TextEncoder:
    verify(folder)
    values = config_of(folder)
    if kind_of(values).task != "encoding":
        raise BundleError(
            f"{path} is a model that reads on, not an encoder; use segue.load or segue generate"
        )
    config = EncoderBundleConfig(**values)

    def build(shape: EncoderConfig) -> TaskEncoder:
        return TaskEncoder(shape, config.head)

    model = load_weights(folder, config.model, build)
    tokenizer = read_wordpiece(folder / TOKENIZER)
    if tokenizer.size > config.model.vocab:
        raise BundleError(
            f"the tokenizer of {folder} has {tokenizer.size:,} symbols and its model {config.model.vocab:,}; "
            "copy the bundle again"
        )
    return TextEncoder(model.eval(), tokenizer, config.reading)
