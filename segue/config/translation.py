"""The shapes of the encoder-decoders, and how they search."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from segue.config.both_sided import BothSidedConfig
from segue.config.layers import StepsConfig, VocabularyConfig
from segue.config.settings import Settings


class Seq2SeqConfig(BothSidedConfig):
    """An encoder-decoder Transformer. `vocab` is the target's, and the source's too without a `source_vocab`.

    `attention`, `window`, `global_tokens`, `rank` and `share` are of the encoder; cross-attention is always whole.
    """

    kind: Literal["seq2seq"] = "seq2seq"
    source_vocab: NonNegativeInt = 0  # 0: one vocabulary for both sides
    encoder_layers: PositiveInt = 6
    decoder_layers: PositiveInt = 6
    encoding: Literal["sinusoidal", "xl"] = "sinusoidal"  # xl: relative in the encoder, to both sides
    decoder_span: NonNegativeInt = 0  # keys that a target's token sees of the target, itself included; 0: all
    max_source: NonNegativeInt = 0  # of `linformer`: the longest source in tokens, its end included
    sinusoids: Literal["interleaved", "concatenated"] = "interleaved"  # Vaswani's order, or all sines first
    activation: Literal["relu", "swish", "gelu"] = "relu"  # of the feed-forward layers
    final_norm: bool = False  # post-norm too has a norm behind the last layer, as torch.nn.Transformer has
    output_bias: bool = False  # a bias for each symbol in the output layer

    @model_validator(mode="after")
    def _low_rank_fits(self) -> Self:
        linformer = self.attention == "linformer"
        if linformer != (self.max_source > 0):
            needs = "a max_source, the longest source in tokens" if linformer else "no max_source"
            raise ValueError(
                f"attention {self.attention!r} needs {needs}; found max_source={self.max_source}"
            )
        if self.attention != "full" and self.encoding == "xl":
            raise ValueError(
                f"attention {self.attention!r} mixes keys of all places, which have no distance to a query; "
                "use encoding='sinusoidal'"
            )
        self.check_rank(self.max_source, "max_source")
        return self


class RecurrentSeq2SeqConfig(VocabularyConfig):
    """A recurrent encoder-decoder, the baseline of the Transformer."""

    kind: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    source_vocab: NonNegativeInt = 0  # 0: one vocabulary for both sides
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    layers: PositiveInt = 2  # of each side
    attention: bool = True  # if False, the decoder gets only the encoder's last state
    bidirectional: bool = False  # half of the encoder's width reads the source from its end (Bahdanau)
    dropout: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _both_directions_have_half(self) -> Self:
        if self.bidirectional and self.width % 2:
            raise ValueError(f"bidirectional halves the width, and {self.width} is odd; use an even one")
        return self


class UniversalSeq2SeqConfig(StepsConfig):
    """A Universal Transformer as encoder-decoder: one block for each side, applied over and over."""

    kind: Literal["universal-seq2seq"] = "universal-seq2seq"
    source_vocab: NonNegativeInt = 0  # 0: one vocabulary for both sides
    encoding: Literal["sinusoidal", "xl"] = "sinusoidal"  # xl: relative in the encoder, to both sides
    decoder_span: NonNegativeInt = 0  # keys that a target's token sees of the target, itself included; 0: all
    output_bias: bool = False  # a bias for each symbol in the output layer
    activation: Literal["relu"] = "relu"  # of the feed-forward layers
    final_norm: Literal[False] = False

    @property
    def encoder_layers(self) -> int:
        return 1

    @property
    def decoder_layers(self) -> int:
        return 1


TranslationConfig = Annotated[
    Seq2SeqConfig | RecurrentSeq2SeqConfig | UniversalSeq2SeqConfig, Field(discriminator="kind")
]
"""The config of an encoder-decoder."""


class Translating(Settings):
    """The default beam search of a translator."""

    beam_width: PositiveInt = 4  # 1 is greedy search
    penalty: float = Field(
        0.6, ge=0, le=10
    )  # of short texts: a score is divided by ((5 + length) / 6) ** penalty
    longest: PositiveInt = 256  # tokens
