"""The shape of an encoder, the head of its task, and how texts are read with it."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from segue.config.both_sided import BothSidedConfig
from segue.config.layers import StepsConfig
from segue.config.settings import Settings


class EncoderConfig(BothSidedConfig):
    """A BERT-style encoder: learned positions, two types of text, GELU. An `embedding` below the width is ALBERT's."""

    kind: Literal["encoder"] = "encoder"
    layers: PositiveInt = 12
    width: PositiveInt = 768
    heads: PositiveInt = 12
    norm: Literal["post"] = "post"
    max_positions: PositiveInt = 512  # the longest text
    types: PositiveInt = 2  # of text: the first and the second of a pair
    activation: Literal["gelu", "gelu-tanh"] = "gelu"  # gelu-tanh: the approximation, Hugging Face's gelu_new
    shared_layers: bool = False  # one layer's weights, applied `layers` times
    pooler: bool = True  # tanh(W x + b) of the first token
    local_heads: NonNegativeInt = (
        0  # of the first layer, that begin with attention to the previous, the next, … token
    )

    @property
    def sees_all(self) -> bool:
        """Whether every token attends to every token, as in BERT."""
        return self.attention == "full" and not self.window

    @model_validator(mode="after")
    def _one_table_of_words(self) -> Self:
        if self.cutoffs or self.divisor > 1:
            raise ValueError("an encoder has one table of words; leave out cutoffs and divisor")
        return self

    @model_validator(mode="after")
    def _local_heads_fit(self) -> Self:
        if not self.local_heads:
            return self
        inner = self.width // self.heads
        if self.local_heads > self.heads:
            raise ValueError(
                f"local_heads {self.local_heads} are more than the {self.heads} heads of a layer"
            )
        if self.embedding != self.width or inner % 2:
            raise ValueError("local_heads need an embedding as wide as the model, and heads of an even width")
        if self.max_positions > 2 * inner:
            raise ValueError(
                f"heads of width {inner} can tell {2 * inner} positions apart, and max_positions is "
                f"{self.max_positions}; leave out local_heads, or use fewer heads"
            )
        return self

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        self.check_rank(self.max_positions, "max_positions")
        return self


class UniversalEncoderConfig(StepsConfig):
    """A Universal Transformer as encoder: texts of any length, since positions are sinusoids."""

    kind: Literal["universal-encoder"] = "universal-encoder"
    types: PositiveInt = 2  # of text: the first and the second of a pair


TaskName = Literal["masked", "text", "tags", "span", "score"]


class HeadConfig(Settings):
    """What an encoder predicts: masked words, a label or a score of a text, a tag of every word, a span of a text."""

    task: TaskName
    labels: tuple[str, ...] = ()  # of text and tags, in the order of the outputs
    pairs: bool = False  # text and score: of two texts
    next_sentence: bool = False  # masked: also whether the second text follows the first
    no_answer: bool = False  # span: some questions have no answer in their text

    @property
    def outputs(self) -> int:
        """Numbers that are predicted for a text, or for each of its tokens. (For masked words, the vocabulary.)"""
        return {"span": 2, "score": 1}.get(self.task, len(self.labels))

    @property
    def pooled(self) -> bool:
        """Whether it needs the encoder's pooled first token."""
        return self.task in ("text", "score") or self.next_sentence

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
        if self.task in ("text", "tags") and len(self.labels) < 2:
            raise ValueError(f"a head of {self.task} needs two labels or more; found {len(self.labels)}")
        if self.task not in ("text", "tags") and self.labels:
            raise ValueError(f"a head of task {self.task!r} has no labels; found {len(self.labels)}")
        if len(set(self.labels)) < len(self.labels) or not all(self.labels):
            raise ValueError("labels should be different and not empty")
        if self.pairs and self.task not in ("text", "score"):
            raise ValueError(f"pairs belong to the tasks text and score; found task {self.task!r}")
        if self.next_sentence and self.task != "masked":
            raise ValueError(f"next_sentence belongs to the task masked; found task {self.task!r}")
        if self.no_answer and self.task != "span":
            raise ValueError(f"no_answer belongs to the task span; found task {self.task!r}")
        return self


class EncoderReading(Settings):
    """How an encoder reads texts, and what the vector of a text is."""

    max_length: int = Field(ge=5)  # tokens of a text with its [CLS] and [SEP]; what is longer is truncated
    pooling: Literal["cls", "mean"] = "cls"  # the first token's state, or the mean of all tokens'
    normalize: bool = False  # vectors of length 1
