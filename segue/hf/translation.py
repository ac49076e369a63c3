"""`AutoModelForSeq2SeqLM` for the translators of segue.

Letters: B sentences, S tokens of the source, T of the target, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.utils import ModelOutput

from segue.errors import InputError
from segue.hf.configuration import SegueSeq2SeqConfig
from segue.hf.pretrained import IGNORED, SeguePreTrainedModel, mean_loss
from segue.hf.state import aligned
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.engine import Engine
from segue.nn.models import build_translator
from segue.text.special_tokens import special_tokens


@dataclass
class SegueSource(ModelOutput):
    """What the decoder knows of the sources: the memory that it begins with."""

    state: Any = None


@dataclass
class SegueSeq2SeqOutput(ModelOutput):
    """`logits` are log-probabilities (B, T, V); `state` goes into the next call."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    state: Any = None


class SegueForSeq2SeqLM(SeguePreTrainedModel, GenerationMixin):  # named here, or the library does not see it
    """An encoder-decoder. The source is encoded once; `state` is the decoder's memory, and holds it too."""

    config_class = SegueSeq2SeqConfig
    config: SegueSeq2SeqConfig

    def __init__(self, config: SegueSeq2SeqConfig) -> None:
        super().__init__(config)
        self.model = build_translator(config.content.model)
        self.post_init()

    def get_encoder(self, *_: Any, **__: Any) -> nn.Module:
        """Reads sources: its output is `encoder_outputs` of the call."""
        return _Reader(self)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: SegueSource | None = None,
        state: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> SegueSeq2SeqOutput | tuple[Any, ...]:
        """Read targets (B, T) on from `state`, or from the beginning behind sources (B, S).

        With `labels`, which end in the end of a sentence, the decoder reads them moved by one behind its start.
        """
        if decoder_input_ids is None:
            decoder_input_ids = self._moved(labels)
        mask = decoder_attention_mask
        batch = aligned(decoder_input_ids, None if mask is None else mask[:, -decoder_input_ids.size(1) :])
        memory = (
            state if state is not None else encoder_outputs.state if encoder_outputs is not None else None
        )
        if memory is None:
            memory = self.started(input_ids, attention_mask)
        hidden, after = self.reads()(batch.tokens, memory, lengths=batch.lengths)
        hidden = batch.put_back(hidden)
        loss = None
        if labels is not None:
            nats = self.model.nats(hidden, labels.masked_fill(labels == IGNORED, 0))
            loss = mean_loss(nats, labels, num_items_in_batch)
        keep = use_cache if use_cache is not None else not self.training
        output = SegueSeq2SeqOutput(
            loss=loss, logits=self.model.logprobs(hidden), state=after if keep else None
        )
        return output if return_dict is None or return_dict else output.to_tuple()

    def started(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Any:
        """The decoder's memory behind sources (B, S)."""
        if input_ids is None:
            raise InputError("there is no source: give input_ids, encoder_outputs or state")
        source = aligned(input_ids, attention_mask)
        return self.reads().start(source.tokens, source.lengths)

    def reads(self) -> "Engine[Any] | EncoderDecoder":
        """The model where a gradient is needed, else its engine."""
        model: EncoderDecoder = self.model
        return model if torch.is_grad_enabled() else self.engine()

    def _moved(self, labels: Tensor | None) -> Tensor:
        """The decoder's input for labels (B, T): its start, then all but the last."""
        if labels is None:
            raise InputError("there is no target: give decoder_input_ids or labels")
        start, end = special_tokens(self.config.vocab_size)
        moved = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], dim=1)
        return moved.masked_fill(moved == IGNORED, end)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, encoder_outputs: SegueSource | None = None, **given: Any
    ) -> Any:
        """For beams, and for several samples of one source: the memory has each sentence as often."""
        ids, others = super()._expand_inputs_for_generation(
            expand_size=expand_size, encoder_outputs=encoder_outputs, **given
        )
        if encoder_outputs is not None and expand_size > 1:
            memory = encoder_outputs.state
            index = torch.arange(memory.lanes).repeat_interleave(expand_size)
            others["encoder_outputs"] = SegueSource(state=memory.select(index))
        return ids, others


class _Reader(nn.Module):
    """The encoder as `generate` calls it. It owns no weights."""

    def __init__(self, owner: SegueForSeq2SeqLM) -> None:
        super().__init__()
        self.__dict__["owner"] = owner  # as no submodule of it

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> SegueSource:
        return SegueSource(state=self.__dict__["owner"].started(input_ids, attention_mask))
