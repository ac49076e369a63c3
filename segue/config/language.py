"""The shapes of the language models, one class for each kind."""

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveFloat, PositiveInt, Tag, model_validator

from segue.config.layers import ENCODINGS, LayersConfig, PositionEncoding, StepsConfig, VocabularyConfig


class XLConfig(LayersConfig):
    """The shape of a Transformer-XL."""

    kind: Literal["xl"] = "xl"
    layers: PositiveInt = 12
    encoding: Literal["xl", "shaw", "sinusoidal", "learned", "per-layer", "rotary", "alibi", "none"] = "xl"
    max_positions: NonNegativeInt = 0  # of `learned` and `per-layer`: rows of their table
    max_distance: NonNegativeInt = 0  # of `shaw`: rows of its table; farther keys share the last row
    biases: Literal["shared", "per-layer"] = "shared"  # u and v: one pair for all layers, or a pair for each
    layer_embeddings: bool = False  # every layer but the first adds a vector of the token to its input
    ngrams: int = Field(1, ge=1, le=8)  # the last 2 … n tokens have vectors too (nn/ngrams.py); 1: none
    ngram_rows: NonNegativeInt = 0  # of the table for each length of n-grams
    init: PositiveFloat = 0.02  # the spread of fresh weights
    pattern: Literal["full", "strided", "fixed"] = "full"  # of sparse attention: see nn/patterns.py
    stride: NonNegativeInt = 0  # of `strided` and `fixed`: l
    summary: NonNegativeInt = 0  # of `fixed`: c columns of every block that all later queries see
    combine: Literal["merged", "layers", "heads"] = "merged"  # near and far keys: together, or in turn

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

    @model_validator(mode="after")
    def _ngrams_fit(self) -> Self:
        if (self.ngrams > 1) != (self.ngram_rows > 0):
            needs = "ngram_rows of 1 or more" if self.ngrams > 1 else "no ngram_rows"
            raise ValueError(f"ngrams {self.ngrams} needs {needs}; found ngram_rows={self.ngram_rows}")
        return self

    @model_validator(mode="after")
    def _pattern_fits(self) -> Self:
        wanted = {"full": (), "strided": ("stride",), "fixed": ("stride", "summary")}[self.pattern]
        for name in ("stride", "summary"):
            size = getattr(self, name)
            if (name in wanted) != (size > 0):
                needs = f"{name} of 1 or more" if name in wanted else f"no {name}"
                raise ValueError(f"pattern {self.pattern!r} needs {needs}; found {name}={size}")
        if self.summary and self.stride % self.summary:
            raise ValueError(f"stride {self.stride} is not a multiple of summary {self.summary}; change one")
        if self.pattern == "full" and self.combine != "merged":
            raise ValueError(f"combine {self.combine!r} needs pattern 'strided' or 'fixed'; found 'full'")
        if self.combine != "merged" and getattr(self, self.combine) < 2:
            raise ValueError(f"combine {self.combine!r} needs 2 {self.combine} or more; found 1")
        if self.pattern != "full" and self.attention_dropout:
            raise ValueError(
                f"pattern {self.pattern!r} never has all attention weights at once; "
                "use dropout, not attention_dropout"
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


class UniversalConfig(StepsConfig):
    """A Universal Transformer that reads on: distances as in Transformer-XL, and the number of each step."""

    kind: Literal["universal"] = "universal"
    encoding: Literal["xl"] = "xl"
    init: PositiveFloat = 0.02  # the spread of fresh weights

    @property
    def layers(self) -> int:
        """Steps have their own rows of memory each, as layers have."""
        return self.steps

    @property
    def position_encoding(self) -> PositionEncoding:
        return ENCODINGS[self.encoding]


class ConvolutionLayer(NamedTuple):
    """A layer's output width, the taps of its filters (kernel), and the tokens between two taps (dilation)."""

    width: Annotated[int, Field(gt=0, le=2**20)]
    kernel: Annotated[int, Field(gt=0, le=2**10)]
    dilation: Annotated[int, Field(gt=0, le=2**16)] = 1  # no weight tells it, so memory must bound it


def _eight_layers(shape: dict[str, Any]) -> tuple[ConvolutionLayer, ...]:
    return (ConvolutionLayer(int(shape["width"]), 4),) * 8


class ConvolutionalConfig(VocabularyConfig):
    """A convolutional language model: GCNN, TCN, or QRNN, which also carries a state."""

    kind: Literal["convolutional"] = "convolutional"
    layers: tuple[ConvolutionLayer, ...] = Field(default_factory=_eight_layers)
    gate: Literal["glu", "tcn", "qrnn"] = (
        "glu"  # gated linear units; two with ReLU; z, f and o with fo-pooling
    )
    input_embedding: NonNegativeInt = (
        0  # its width if it has a table of its own, projected to the first layer
    )
    dropout: float = Field(0.0, ge=0, lt=1)

    @property
    def input_width(self) -> int:
        """Of what enters the first layer."""
        return self.layers[0].width if self.input_embedding else self.width

    @property
    def receptive_field(self) -> int:
        """Tokens that a hidden state may depend on, its own included; of a QRNN, through its filters alone."""
        each = 2 if self.gate == "tcn" else 1
        return 1 + sum(each * (kernel - 1) * dilation for _, kernel, dilation in self.layers)

    @model_validator(mode="after")
    def _ends_fit(self) -> Self:
        if not self.layers:
            raise ValueError("layers should be at least one of [width, kernel, dilation]; found none")
        if self.layers[-1].width != self.width:
            raise ValueError(
                f"the last of the layers is {self.layers[-1].width} wide and the output {self.width}; "
                "make `width` and the last layer's agree"
            )
        if self.input_embedding and (not self.tied or self.projected(0)):
            raise ValueError(
                "with an input_embedding, the output's table is its own and as wide as the model: leave `tied` and "
                "`embedding` as they are, and with a divisor use head_projection=false"
            )
        return self


def kind_name(model: Any) -> str:
    """The name of a model's kind; a Transformer-XL's where none is given."""
    return str(model.get("kind", "xl") if isinstance(model, dict) else getattr(model, "kind", "xl"))


LanguageConfig = Annotated[
    Annotated[XLConfig, Tag("xl")]
    | Annotated[RecurrentConfig, Tag("recurrent")]
    | Annotated[KernelConfig, Tag("kernel")]
    | Annotated[UniversalConfig, Tag("universal")]
    | Annotated[ConvolutionalConfig, Tag("convolutional")],
    Discriminator(kind_name),
]
"""The config of a language model."""
