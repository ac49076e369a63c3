"""Encoders and encoder-decoders as modules that can be traced to graphs, in the textbook form of their attention.

Letters: B texts, S tokens of a source, T of a target, M rows in memory, H heads, D head width, C width, N layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import EncoderReading
from segue.errors import SourceError
from segue.interop.onnx_language import read_layer
from segue.nn.block import Block, Source
from segue.nn.encoder_decoder import EncoderDecoder
from segue.nn.layout import SegmentLayout
from segue.nn.mask import AttentionMask
from segue.nn.seq2seq import Seq2Seq
from segue.nn.task_encoder import TaskEncoder
from segue.nn.universal_seq2seq import UniversalSeq2Seq


class SourceStep(nn.Module):
    """The encoder: sources (B, S) and their lengths (B,) to keys and values for the decoder, (B, N, 2, S, H, D)."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        hidden, _ = self.model.encode(source, lengths)
        blocks = [block for block in self.model.decoder if isinstance(block, Block)]
        return torch.stack([block.project_source(hidden) for block in blocks]).movedim(3, 0)


class TargetStep(nn.Module):
    """The decoder: one step of reading on in targets (B, T), whose own memory (B, N, 2, M, H, D) grows by T rows."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model, config = model, model.config
        layers = config.steps if isinstance(model, UniversalSeq2Seq) else config.decoder_layers
        self.row = layers, 2, config.heads, config.head_width

    def forward(
        self, tokens: Tensor, keys_values: Tensor, lengths: Tensor, memory: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        model, (lanes, size) = self.model, tokens.shape
        places = (seen[:, None] + torch.arange(size)).T
        mask = AttentionMask(memory.size(3), size, model.config.decoder_span or None)
        sources, past = self._sources(keys_values, lengths, size), memory.movedim(0, 3)
        hidden, kept = model.vocabulary.embed(tokens.T), []

        def take(layer: int, entered: Tensor) -> Tensor:
            number = layer % len(model.decoder)
            after, rows = read_layer(model.decoder[number], entered, past[layer], None, mask, sources[number])
            kept.append(rows if not mask.span else rows[:, 1 - mask.span :] if mask.span > 1 else rows[:, :0])
            return after

        if isinstance(model, UniversalSeq2Seq):
            hidden, _ = model.decoder_steps(hidden, None, take, places=model.signal(places, hidden))
        else:
            hidden = model.placed(hidden, places)
            for layer in range(len(model.decoder)):
                hidden = take(layer, hidden)
        hidden = model.closed(hidden, SegmentLayout(lanes, size))
        return model.logprobs(hidden), torch.stack(kept).movedim(3, 0), seen + size

    def _sources(self, keys_values: Tensor, lengths: Tensor, queries: int) -> list[Source]:
        size = keys_values.size(3)
        padded = (torch.arange(size) >= lengths[:, None]) & (lengths > 0)[:, None]
        padding = padded[:, None, None].expand(-1, -1, queries, -1)
        mask = AttentionMask(size, queries, padding=padding, causal=False)
        return [Source(rows, mask) for rows in keys_values.movedim(0, 3)]


class TextStep(nn.Module):
    """An encoder of texts (B, S): its states, the vector of each text, and the logits of its head if it has one."""

    def __init__(self, model: TaskEncoder, reading: EncoderReading) -> None:
        super().__init__()
        self.model, self.reading = model, reading

    @property
    def outputs(self) -> dict[str, int]:
        """Their names, and how many of their axes, texts and tokens, have free sizes."""
        names = {"last_hidden_state": 2, "sentence_embedding": 1}
        if self.model.encoder.pooler is not None:
            names["pooler_output"] = 1
        if self.model.task is not None:
            names["logits"] = 1 if self.model.task.task in ("text", "score") else 2
            names |= {"seq_relationship_logits": 1} if self.model.task.next_sentence else {}
        return names

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        encoded = self.model.encoder(input_ids, attention_mask, token_type_ids)
        states, pooled = encoded.last_hidden_state, encoded.pooler_output
        outputs = [states, self._vectors(states, attention_mask), *([] if pooled is None else [pooled])]
        if self.model.head is not None:
            predicted = self.model.predict(states, pooled)
            following = predicted.seq_relationship_logits
            outputs += [predicted.logits, *([] if following is None else [following])]
        return tuple(outputs)

    def _vectors(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, C) As `segue embed` gives them."""
        vectors = states[:, 0]
        if self.reading.pooling == "mean":
            real = attention_mask.to(states.dtype)[..., None]
            vectors = (states * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        return F.normalize(vectors, dim=-1) if self.reading.normalize else vectors


def exportable(model: EncoderDecoder) -> Seq2Seq:
    """The model, if its encoder and decoder have an ONNX form."""
    if not isinstance(model, Seq2Seq):
        raise SourceError(
            f"a {model.config.kind} model has no ONNX form: its encoder packs sources of different lengths; "
            "encoder-decoder Transformers have one"
        )
    return model
