"""Hugging Face's classes for models of segue. Importing this registers them with `transformers`.

    import segue.hf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("folder")  # that `segue export RUN -o folder --to hf` wrote
    tokenizer = AutoTokenizer.from_pretrained("folder")

Encoders are written as BERT, so their folders open without this import.
"""

from segue.errors import InputError

try:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
except ImportError:
    raise InputError("segue.hf needs the hf extra: pip install 'segue-lm[hf]'") from None

from segue.hf.configuration import SegueConfig, SegueSeq2SeqConfig
from segue.hf.language import SegueForCausalLM
from segue.hf.state import SegueState
from segue.hf.translation import SegueForSeq2SeqLM

__all__ = ["SegueConfig", "SegueForCausalLM", "SegueForSeq2SeqLM", "SegueSeq2SeqConfig", "SegueState"]

for _config in (SegueConfig, SegueSeq2SeqConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
AutoModelForCausalLM.register(SegueConfig, SegueForCausalLM, exist_ok=True)
AutoModelForSeq2SeqLM.register(SegueSeq2SeqConfig, SegueForSeq2SeqLM, exist_ok=True)
