"""From a config to fresh weights: the class of each kind of model."""

from collections.abc import Callable
from typing import Any

from torch import nn

from segue.config import LanguageConfig, TranslationConfig
from segue.nn.convolutional import ConvolutionalModel
from segue.nn.encoder import Encoder
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.kernel import KernelModel
from segue.nn.language import LanguageModel
from segue.nn.recurrent import RecurrentModel
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.nn.universal import UniversalTransformer
from segue.nn.universal_encoder import UniversalEncoder
from segue.nn.universal_seq2seq import UniversalSeq2Seq
from segue.nn.xl import TransformerXL

CLASSES: dict[str, Callable[[Any], nn.Module]] = {
    "xl": TransformerXL,
    "recurrent": RecurrentModel,
    "kernel": KernelModel,
    "universal": UniversalTransformer,
    "convolutional": ConvolutionalModel,
    "seq2seq": Seq2Seq,
    "recurrent-seq2seq": RecurrentSeq2Seq,
    "universal-seq2seq": UniversalSeq2Seq,
    "encoder": Encoder,
    "universal-encoder": UniversalEncoder,
}
"""By `model.kind`; `kinds.KINDS` has the rest of what belongs to a kind."""


def build_language_model(config: LanguageConfig) -> LanguageModel:
    model = CLASSES[config.kind](config)
    assert isinstance(model, LanguageModel)
    return model


def build_translator(config: TranslationConfig) -> EncoderDecoder:
    model = CLASSES[config.kind](config)
    assert isinstance(model, EncoderDecoder)
    return model
