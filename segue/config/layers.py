"""What several models have in common: vocabulary, positional encodings, a Transformer's layers.

Letters: C width, H heads, D head width, V vocabulary.
"""

from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, PositiveInt, model_validator

from segue.config.settings import Settings


class PositionEncoding(NamedTuple):
    """What a positional encoding is, for all who need to know without its weights."""

    relative: bool = False  # attention scores know distances, so a clamp has an effect
    counts: bool = False  # tokens are numbered from the start of their document
    rotates: bool = False  # queries and keys are turned by their positions; their distance is what is left
    rows: str | None = None  # the setting that sizes its learned table


ENCODINGS = {
    "xl": PositionEncoding(relative=True),
    "shaw": PositionEncoding(relative=True, rows="max_distance"),
    "sinusoidal": PositionEncoding(counts=True),
    "learned": PositionEncoding(counts=True, rows="max_positions"),
    "per-layer": PositionEncoding(counts=True, rows="max_positions"),
    "rotary": PositionEncoding(rotates=True),
    "alibi": PositionEncoding(relative=True),
    "none": PositionEncoding(),
}
"""The positional encodings of a Transformer-XL by their names. Their weights are in `nn/positions.py`."""


def _as_wide(shape: dict[str, Any]) -> int:
    return int(shape["width"])


def _four_times(shape: dict[str, Any]) -> int:
    return 4 * int(shape["width"])


def _shared_out(shape: dict[str, Any]) -> int:
    return max(1, int(shape["width"]) // int(shape["heads"]))


class VocabularyConfig(Settings):
    """Embedding and output layer: tokens to vectors, vectors to probabilities.

    With `cutoffs`, tokens are sorted into clusters of falling frequency: the head, then one tail per cutoff.
    With a `divisor` k, cluster i has vectors of width embedding / k^i.
    """

    vocab: PositiveInt
    width: PositiveInt = 512
    embedding: PositiveInt = Field(default_factory=_as_wide)  # of the head cluster
    cutoffs: tuple[PositiveInt, ...] = ()
    divisor: PositiveInt = 1
    tied: bool = True  # one table for both ends
    tied_projections: bool = True  # the tails' projections too; the head's is always its own
    head_projection: bool = True  # with a divisor: project the head even where its width already fits

    @property
    def edges(self) -> tuple[int, ...]:
        """Cluster i holds the tokens from edges[i] up to edges[i + 1]."""
        return (0, *self.cutoffs, self.vocab)

    @property
    def clusters(self) -> int:
        return len(self.cutoffs) + 1

    def projected(self, cluster: int) -> bool:
        """Whether a projection stands between the model's width and this cluster's."""
        if self.divisor == 1 or (cluster == 0 and not self.head_projection):
            return self.embedding != self.width
        return True

    @model_validator(mode="after")
    def _cutoffs_rise(self) -> Self:
        if any(left >= right for left, right in pairwise(self.edges)):
            raise ValueError(
                f"cutoffs {list(self.cutoffs)} should rise and stay below the vocabulary of {self.vocab}"
            )
        if self.embedding // self.divisor ** len(self.cutoffs) < 1:
            raise ValueError(
                f"divisor {self.divisor} leaves no width for the last of {self.clusters} clusters; "
                f"use fewer cutoffs, or an embedding wider than {self.embedding}"
            )
        return self


NOT_CAUSAL = {
    "linformer": "each of its rows mixes all times, so no mask can hide the future, "
    "and its columns are fixed places, so memory cannot move on",
    "nystrom": "each of its landmarks is a mean over time, so no mask can hide the future",
}
"""Low-rank attention by its names, and why a language model cannot have it."""


class LayersConfig(VocabularyConfig):
    """The settings of all Transformers' layers: their shape, and dropout in training."""

    both_sided: ClassVar[bool] = False  # an encoder's tokens see what follows them

    heads: PositiveInt = 8
    head_width: PositiveInt = Field(default_factory=_shared_out)
    feedforward: PositiveInt = Field(default_factory=_four_times)  # the feed-forward layer's width
    norm: Literal["post", "pre"] = "post"
    dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _low_rank_is_not_causal(cls, values: Any) -> Any:
        attention = values.get("attention") if isinstance(values, dict) else None
        if isinstance(attention, str) and attention in NOT_CAUSAL and not cls.both_sided:
            raise ValueError(
                f"attention {attention!r} cannot be causal: {NOT_CAUSAL[attention]}; "
                "it is for encoders: kind 'encoder' or 'seq2seq'"
            )
        return values

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if "head_width" not in self.model_fields_set and self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of heads {self.heads}; "
                "change one, or give head_width as well"
            )
        return self


class StepsConfig(LayersConfig):
    """The settings of a Universal Transformer: one block, applied over and over."""

    steps: int = Field(6, ge=1, le=1000)  # how often the block is applied; with halting, at most
    halting: Literal["none", "act", "listing"] = "none"  # act: Graves's; listing: as the paper's code
    halt_bias: float = -3.0  # b of the halting unit before training: low, to begin with many steps

    @property
    def halts(self) -> bool:
        """Whether each token decides for itself how many steps it takes."""
        return self.halting != "none"

    @model_validator(mode="after")
    def _steps_to_choose_from(self) -> Self:
        if self.halts and self.steps < 2:
            raise ValueError(f"halting {self.halting!r} needs steps of 2 or more; found {self.steps}")
        return self
