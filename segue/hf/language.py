"""`AutoModelForCausalLM` for every language model of segue, with a memory that goes from call to call.

    out = model.generate(**tokenizer("Once", return_tensors="pt"), max_new_tokens=50, return_dict_in_generate=True)
    more = model.generate(out.sequences[:, -1:], state=out.past_key_values, max_new_tokens=50)  # goes on

Letters: B lanes, T tokens of the call, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.utils import ModelOutput

from segue.config import Reading
from segue.errors import InputError
from segue.hf.configuration import SegueConfig
from segue.hf.pretrained import IGNORED, SeguePreTrainedModel, mean_loss, shown
from segue.hf.state import Aligned, SegueState, aligned, read_on
from segue.nn.models import build_language_model
from segue.nn.xl import TransformerWithMemory


@dataclass
class SegueOutput(ModelOutput):
    """`logits` are log-probabilities (B, T, V); `state` goes into the next call."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    state: SegueState | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class SegueForCausalLM(SeguePreTrainedModel, GenerationMixin):  # named here, or the library does not see it
    """A language model that reads on from its `state`, whose size does not grow with the stream."""

    config_class = SegueConfig
    config: SegueConfig

    def __init__(self, config: SegueConfig) -> None:
        super().__init__(config)
        self.model = build_language_model(config.content.model)
        self.post_init()

    @property
    def reading(self) -> Reading:
        """How it reads: a Transformer gets a span, so that it makes no difference where a stream is cut."""
        reading = self.config.content.reading
        return reading.without_seams() if isinstance(self.model, TransformerWithMemory) else reading

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        state: SegueState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> SegueOutput | tuple[Any, ...]:
        """Read tokens (B, T), which go on from `state` if there is one. Padding may lie on either side.

        With `labels` the loss is their mean cross-entropy, shifted by one as everywhere in this library.
        """
        if output_attentions:
            raise InputError("attention weights are not returned here; `segue attention` shows them")
        batch = self._batch(input_ids, attention_mask)
        hidden, after = self._read(batch, state)
        hidden = batch.put_back(hidden)
        loss = None
        if labels is not None:
            wanted = labels[:, 1:].to(hidden.device)
            nats = self.model.nats(hidden[:, :-1], wanted.masked_fill(wanted == IGNORED, 0))
            loss = mean_loss(nats, wanted, num_items_in_batch)
        keep = use_cache if use_cache is not None else not self.training
        output = SegueOutput(
            loss=loss,
            logits=self.model.logprobs(shown(hidden, logits_to_keep)),
            state=after if keep else None,
            hidden_states=(hidden,) if output_hidden_states else None,
        )
        return output if return_dict is None or return_dict else output.to_tuple()

    def _batch(self, ids: Tensor | None, mask: Tensor | None) -> Aligned:
        if ids is None:
            raise InputError("segue's models read input_ids; found none (inputs_embeds are not supported)")
        if not ids.size(1):
            raise InputError("there is nothing to read: input_ids have no tokens; begin with at least one")
        mask = None if mask is None else mask[:, -ids.size(1) :]
        padding, vocab = self.config.pad_token_id, self.config.vocab_size
        if padding is not None and padding >= vocab:  # it stands for no text, so it is never read
            real = ids != padding
            if not bool(real.all()):
                mask = real if mask is None else mask.bool() & real
        batch = aligned(ids, mask)
        self.model.check(batch.tokens)
        return batch

    def _read(self, batch: Aligned, state: SegueState | None) -> tuple[Tensor, SegueState]:
        reading, lanes = self.reading, len(batch.tokens)
        if state is None and batch.lengths is not None and not bool(batch.lengths.all()):
            row = int(batch.lengths.argmin())
            raise InputError(f"row {row} of input_ids is padding alone, so there is nothing to go on from")
        if state is not None and state.lanes != lanes:
            raise InputError(f"the state has {state.lanes} lanes and input_ids {lanes}; use state.select()")
        from_engine = state is not None and state.window is None and state.from_engine
        if from_engine and self.training and torch.is_grad_enabled():
            raise InputError(
                "this state was read without gradient, so training cannot go on from it; leave it out, or use "
                "torch.no_grad()"
            )
        model = self.engine() if from_engine or not torch.is_grad_enabled() else self.model
        if state is None or state.window is not None:
            memory = model.start(lanes=lanes, reach=reading.reach)
            state = SegueState(memory) if state is None else replace(state, memory=memory)
        if not reading.reach.memory and state.window is None:
            empty = batch.tokens.new_zeros(lanes, 0)
            state = replace(state, window=empty, held=torch.zeros(lanes, dtype=torch.int64))
        if model is not self.model:
            state = replace(state, memory=model.project(state.memory))
        return read_on(model, batch, state, reading)

    def generate(self, *given: Any, past_key_values: Any = None, **settings: Any) -> Any:
        """As everywhere in this library; a memory to go on with is called `state`."""
        if past_key_values is not None:
            raise InputError("give the memory of an earlier call as state=, not as past_key_values=")
        return super().generate(*given, **settings)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, state: SegueState | None = None, **given: Any
    ) -> Any:
        """For beams, and for several samples of one text: a state has each lane as often as its text."""
        ids, others = super()._expand_inputs_for_generation(expand_size=expand_size, **given)
        if state is not None:
            others["state"] = state.select(torch.arange(state.lanes).repeat_interleave(expand_size))
        return ids, others
