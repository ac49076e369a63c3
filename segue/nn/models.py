"""From a config to fresh weights: the class of each kind of model."""

from collections.abc import Callable
from typing import Any

from torch import nn

from segue.config import KernelConfig, RecurrentConfig, RecurrentSeq2SeqConfig, Seq2SeqConfig, XLConfig
from segue.nn.encoder import Encoder
from segue.nn.kernel import KernelModel
from segue.nn.language import LanguageModel
from segue.nn.recurrent import RecurrentModel
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.nn.xl import TransformerXL

CLASSES: dict[str, Callable[[Any], nn.Module]] = {
    "xl": TransformerXL,
    "recurrent": RecurrentModel,
    "kernel": KernelModel,
    "seq2seq": Seq2Seq,
    "recurrent-seq2seq": RecurrentSeq2Seq,
    "encoder": Encoder,
}
"""By `model.kind`; `kinds.KINDS` has the rest of what belongs to a kind."""


def build_language_model(config: XLConfig | RecurrentConfig | KernelConfig) -> LanguageModel:
    model = CLASSES[config.kind](config)
    assert isinstance(model, LanguageModel)
    return model


def build_translator(config: Seq2SeqConfig | RecurrentSeq2SeqConfig) -> Seq2Seq | RecurrentSeq2Seq:
    model = CLASSES[config.kind](config)
    assert isinstance(model, Seq2Seq | RecurrentSeq2Seq)
    return model
