"""All settings, checked when they are built. Imports no torch, so that the command line starts quickly.

A model's config holds what shapes its weights. How far back it reads is in `Reach`, because the weights of a
Transformer-XL do not depend on it. Letters as everywhere: C width, H heads, D head width, V vocabulary.
"""

from difflib import get_close_matches
from itertools import pairwise
from reprlib import Repr
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)

from segue.errors import ConfigError
from segue.renamed import new_name


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


CHUNK_TOKENS = 512
"""Tokens that are read in one call where the segment length makes no difference: enough for large products."""


SHORT = Repr()
"""Prints a wrong value in one short line, however long or deeply nested it is."""
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 80


class Settings(BaseModel):
    """Immutable settings without unknown keys or infinite numbers; errors are one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        for name in type(self).model_fields.keys() & values.keys():
            _check_fits(f"{type(self).__name__}: {name}", values[name])
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explained(type(self), error)) from None


def _check_fits(name: str, value: Any) -> None:
    """Refuse integers of more than 64 bits. (Python's have no limit, and may take for ever to print.)"""
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise ConfigError(f"{name} should be a number of 64 bits; found a longer one")


def explained(kind: type[BaseModel], error: ValidationError) -> str:
    """Pydantic's report as one line: `TrainConfig has no 'stpes'; did you mean 'steps'?`"""
    details = [d for d in error.errors(include_url=False) if d["type"] != "default_factory_not_called"]
    return "; ".join(_complaint(kind, detail) for detail in details)


def _complaint(kind: type[BaseModel], detail: Any) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "extra_forbidden":
            near = new_name(name) or next(iter(get_close_matches(name, kind.model_fields, n=1)), None)
            hint = (
                f"did you mean '{near}'?"
                if near in kind.model_fields
                else f"it has {', '.join(kind.model_fields)}"
            )
            return f"{kind.__name__} has no '{name}'; {hint}"
        case "missing":
            return f"{kind.__name__} needs '{name}'"
        case "value_error":
            return f"{kind.__name__}: {detail['ctx']['error']}"
        case "union_tag_invalid":
            tag, known = detail["ctx"]["tag"], detail["ctx"]["expected_tags"]
            return f"{kind.__name__}: {name}.kind should be one of {known}; found '{tag}'"
    wanted = detail["msg"].removeprefix("Input should be ")
    return f"{kind.__name__}: {name} should be {wanted}; found {SHORT.repr(detail['input'])}"


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


class LayersConfig(VocabularyConfig):
    """The settings of all Transformers' layers: their shape, and dropout in training."""

    heads: PositiveInt = 8
    head_width: PositiveInt = Field(default_factory=_shared_out)
    feedforward: PositiveInt = Field(default_factory=_four_times)  # the feed-forward layer's width
    norm: Literal["post", "pre"] = "post"
    dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if "head_width" not in self.model_fields_set and self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of heads {self.heads}; "
                "change one, or give head_width as well"
            )
        return self


class XLConfig(LayersConfig):
    """The shape of a Transformer-XL."""

    kind: Literal["xl"] = "xl"
    layers: PositiveInt = 12
    encoding: Literal["xl", "shaw", "sinusoidal", "learned", "per-layer", "rotary", "alibi", "none"] = "xl"
    max_positions: NonNegativeInt = 0  # of `learned` and `per-layer`: rows of their table
    max_distance: NonNegativeInt = 0  # of `shaw`: rows of its table; farther keys share the last row
    biases: Literal["shared", "per-layer"] = "shared"  # u and v: one pair for all layers, or a pair for each
    init: PositiveFloat = 0.02  # the spread of fresh weights

    @property
    def position_encoding(self) -> PositionEncoding:
        return ENCODINGS[self.encoding]

    @model_validator(mode="after")
    def _table_fits(self) -> Self:
        for name in ("max_positions", "max_distance"):
            rows, wanted = getattr(self, name), self.position_encoding.rows == name
            if wanted != (rows > 0):
                size = f"{name} of 1 or more" if wanted else f"no {name}"
                raise ValueError(f"encoding {self.encoding!r} needs {size}; found {name}={rows}")
        if self.position_encoding.rotates and self.head_width < 2:
            raise ValueError(
                f"encoding {self.encoding!r} turns pairs of numbers; found head_width={self.head_width}"
            )
        return self


class RecurrentConfig(VocabularyConfig):
    """A recurrent language model, the baseline of Transformer-XL."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"] = "lstm"  # rnn: Elman's, with tanh
    layers: PositiveInt = 2
    dropout: float = Field(0.0, ge=0, lt=1)


class KernelConfig(LayersConfig):
    """A language model with kernel attention: linear attention, or Performer."""

    kind: Literal["kernel"] = "kernel"
    layers: PositiveInt = 12
    features: Literal["elu", "performer"] = "elu"  # φ: elu + 1, or random features of the exponential
    random_features: NonNegativeInt = 0  # of `performer`
    encoding: Literal["sinusoidal", "none"] = "sinusoidal"
    init: PositiveFloat = 0.02  # the spread of fresh weights

    @property
    def feature_count(self) -> int:
        return self.random_features or self.head_width

    @model_validator(mode="after")
    def _features_fit(self) -> Self:
        if (self.features == "performer") != (self.random_features > 0):
            needs = "random_features of 1 or more" if self.features == "performer" else "no random_features"
            raise ValueError(f"features {self.features!r} need {needs}; found {self.random_features}")
        if self.attention_dropout:
            raise ValueError("kernel attention has no weights to drop; use dropout, not attention_dropout")
        return self


def kind_name(model: Any) -> str:
    """The name of a model's kind; a Transformer-XL's where none is given."""
    return str(model.get("kind", "xl") if isinstance(model, dict) else getattr(model, "kind", "xl"))


LanguageConfig = Annotated[
    Annotated[XLConfig, Tag("xl")]
    | Annotated[RecurrentConfig, Tag("recurrent")]
    | Annotated[KernelConfig, Tag("kernel")],
    Discriminator(kind_name),
]
"""The config of a language model."""


class Seq2SeqConfig(LayersConfig):
    """An encoder-decoder Transformer. `vocab` is the target's, and the source's too without a `source_vocab`."""

    kind: Literal["seq2seq"] = "seq2seq"
    source_vocab: NonNegativeInt = 0  # 0: one vocabulary for both sides
    encoder_layers: PositiveInt = 6
    decoder_layers: PositiveInt = 6
    encoding: Literal["sinusoidal", "xl"] = "sinusoidal"  # xl: relative in the encoder, to both sides


class RecurrentSeq2SeqConfig(VocabularyConfig):
    """A recurrent encoder-decoder, the baseline of the Transformer."""

    kind: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    source_vocab: NonNegativeInt = 0  # 0: one vocabulary for both sides
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    layers: PositiveInt = 2  # of each side
    attention: bool = True  # if False, the decoder gets only the encoder's last state
    dropout: float = Field(0.0, ge=0, lt=1)


class EncoderConfig(LayersConfig):
    """A BERT-style encoder: learned positions, two types of text, GELU."""

    kind: Literal["encoder"] = "encoder"
    layers: PositiveInt = 12
    width: PositiveInt = 768
    heads: PositiveInt = 12
    max_positions: PositiveInt = 512  # the longest text
    types: PositiveInt = 2  # of text: the first and the second of a pair


class Reach(Settings):
    """How far back a model reads: memory length, clamp, span. A memory carries its reach along.

    Absolute positions that restart in every segment while memory is carried are refused. `confused` allows them, for
    the experiment that shows why.
    """

    memory: NonNegativeInt  # states kept for each layer and lane
    clamp: PositiveInt | None = None  # larger distances count as this one
    span: PositiveInt | None = None  # a query sees this many keys, itself included
    initial: Literal["empty", "zeros"] = "empty"  # zeros: a full memory of zeros, which is attended to
    positions: Literal["onward", "restart", "confused"] = (
        "onward"  # of absolute encodings, in the next segment
    )

    @model_validator(mode="after")
    def _segments_can_be_told_apart(self) -> Self:
        if self.positions == "restart" and self.memory:
            raise ValueError(
                "absolute positions that restart in every segment while memory is carried cannot tell the "
                f"segments apart; found memory={self.memory}: use positions='onward', or memory=0"
            )
        return self


class Reading(Settings):
    """The default segment length and reach of a bundle."""

    segment: PositiveInt
    reach: Reach

    @property
    def seamless(self) -> bool:
        """Whether the segment length makes no difference: every token sees the same span of keys."""
        span, whole = self.reach.span, self.reach.positions == "onward"
        return span is not None and span <= self.reach.memory + 1 and whole

    @property
    def chunk(self) -> int:
        """Tokens to read in one call: a segment, or several where the segment length makes no difference."""
        return max(1, CHUNK_TOKENS // self.segment) * self.segment if self.seamless else self.segment

    def overlap(self, layers: int) -> int:
        """Warm-up length: tokens to read, unscored, before a part of a stream, so that its scores equal one pass's.

        A layer looks back by its span where reading is seamless, else by memory and a segment at most.
        """
        depth = self.reach.span if self.seamless and self.reach.span else self.reach.memory + self.segment
        return -(-layers * depth // self.segment) * self.segment

    def changed(
        self,
        *,
        segment: int | None = None,
        memory: int | None = None,
        clamp: int | None = None,
        span: int | None = None,
    ) -> "Reading":
        """The same with some values changed; 0 removes a clamp or span.

        A new memory length removes the span; any memory turns positions that restart into ones that run on.
        """
        reach = self.reach.model_dump()
        if memory is not None:
            reach |= {
                "memory": memory,
                "span": None,
                "positions": "onward" if memory else self.reach.positions,
            }
        if clamp is not None:
            reach["clamp"] = clamp or None
        if span is not None:
            reach["span"] = span or None
        return Reading(segment=self.segment if segment is None else segment, reach=Reach(**reach))


class Translating(Settings):
    """The default beam search of a translator."""

    beam_width: PositiveInt = 4  # 1 is greedy search
    penalty: float = Field(
        0.6, ge=0, le=10
    )  # of short texts: a score is divided by ((5 + length) / 6) ** penalty
    longest: PositiveInt = 256  # tokens


class BundleConfig(Settings):
    """The content of a bundle's config.json."""

    format: Literal["segue-bundle-1"] = "segue-bundle-1"
    model: LanguageConfig
    reading: Reading


class TranslatorConfig(Settings):
    """The content of a translator bundle's config.json."""

    format: Literal["segue-translator-1"] = "segue-translator-1"
    model: Seq2SeqConfig | RecurrentSeq2SeqConfig = Field(discriminator="kind")
    translating: Translating
    lower: bool = False
