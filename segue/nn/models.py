"""From a config to fresh weights: the one place that knows which class belongs to which config."""

from segue.config import RecurrentConfig, XLConfig
from segue.nn.language import LanguageModel
from segue.nn.recurrent import RecurrentModel
from segue.nn.xl import TransformerXL


def build_language_model(config: XLConfig | RecurrentConfig) -> LanguageModel:
    return TransformerXL(config) if isinstance(config, XLConfig) else RecurrentModel(config)
