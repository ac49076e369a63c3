"""Attention weights of a text as the views of one page: of a language model, an encoder or a translator.

Letters: H heads, T queries, S keys.
"""

from dataclasses import replace

import torch

from segue.checkpoint import Bundle, TextEncoder, Translator
from segue.config import Reach
from segue.errors import InputError
from segue.infer.trace import TERMS, recording, recording_terms
from segue.infer.translate import looked_at, steps_taken
from segue.lab.attention_page import View
from segue.nn.universal import UniversalTransformer
from segue.nn.xl import TransformerWithMemory

QUERY_TOKENS, MEMORY_TOKENS = 64, 192
"""Defaults: the most queries, and the most tokens in memory, that one page shows."""


@torch.no_grad()
def reader_views(bundle: Bundle, text: bytes, *, segment: int | None, memory: int | None) -> list[View]:
    """One view per layer: the queries are the last tokens of the text, the keys are memory and these tokens.

    By default the second half of the text is the segment, and the first half is memory.
    """
    model = bundle.model
    if not isinstance(model, TransformerWithMemory):
        raise InputError("this model has no attention to show: it is recurrent or convolutional")
    if bundle.tokenizer is None:
        raise InputError("this bundle has no tokenizer, so no text can be read with it")
    ids, pieces = bundle.tokenizer.spans(text)
    if len(ids) < 2:
        raise InputError(f"the text has {len(ids)} tokens; attention needs at least two")
    queries = min(segment or min(QUERY_TOKENS, len(ids) // 2), len(ids))
    remembered = min(MEMORY_TOKENS if memory is None else memory, len(ids) - queries)
    tokens = torch.as_tensor(ids, dtype=torch.int64)[None]
    reach = bundle.reading.reach
    positions = "onward" if remembered else reach.positions
    state = model.start(reach=Reach(memory=remembered, clamp=reach.clamp, positions=positions))
    first, seam = len(ids) - queries - remembered, len(ids) - queries
    if remembered:
        _, state = model(tokens[:, first:seam], state)
    steps: list[int] = []
    with recording(model) as weights, recording_terms(model) as terms:
        if isinstance(model, UniversalTransformer):
            steps = model.pondered(tokens[:, seam:], state)[2].steps[0].tolist()
        else:
            model(tokens[:, seam:], state)
    words = [piece.decode(errors="replace") for piece in pieces[first:]]
    views = [
        View(
            f"layer {layer + 1}", words[remembered:], words, weights[name][0], remembered, _alone(terms[name])
        )
        for layer, name in enumerate(sorted(weights, key=_layer))
    ]
    return [_with_steps(view, number, steps) for number, view in enumerate(views)] if steps else views


def _with_steps(view: View, number: int, steps: list[int]) -> View:
    """The view of a Universal Transformer's step: tokens that had halted before it look at nothing."""
    looks = torch.tensor(steps)[:, None] > number
    terms = {name: weights * looks for name, weights in view.terms.items()}
    name = view.name.replace("layer", "step")
    return replace(view, name=name, weights=view.weights * looks, terms=terms, steps=steps)


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _alone(terms: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The attention weights of each score term alone: the softmax of that term."""
    if len(terms) == 1:
        return {}
    return {TERMS[name]: term[0].softmax(dim=-1) for name, term in terms.items()}


def encoder_views(encoder: TextEncoder, text: str) -> list[View]:
    """One view per layer of an encoder; every token attends to every token."""
    (pieces,) = encoder.tokenizer.pieces([text], encoder.model.config.max_positions)
    if pieces.truncated:
        raise InputError(
            f"the text has more tokens than the {encoder.model.config.max_positions} that the encoder can read"
        )
    words = encoder.tokenizer.tokens(pieces.ids)
    attentions = encoder(
        text, max_length=encoder.model.config.max_positions, output_attentions=True
    ).attentions
    return [
        View(f"layer {layer + 1}", words, words, weights[0]) for layer, weights in enumerate(attentions or ())
    ]


def translator_views(translator: Translator, source: bytes, text: str) -> list[View]:
    """Self-attention of the encoder's layers and of the decoder's, and cross-attention; of an RNN, the last alone."""
    words, written, weights = looked_at(translator, source, text)
    inputs = ["<start>", *written[:-1]]
    source_steps, target_steps = steps_taken(translator, source, text)
    views = []
    for name, matrix in weights.items():
        if name == "attention":
            views.append(View("decoder to encoder", inputs, words, matrix))
            continue
        side, layer, kind = name.split(".")
        if side == "encoder":
            views.append(View(f"encoder, layer {int(layer) + 1}", words, words, matrix))
        elif kind == "cross":
            views.append(View(f"decoder to encoder, layer {int(layer) + 1}", inputs, words, matrix))
        else:
            views.append(View(f"decoder, layer {int(layer) + 1}", inputs, inputs, matrix))
        if source_steps:
            views[-1] = _with_steps(
                views[-1], int(layer), source_steps if side == "encoder" else target_steps
            )
    return views
