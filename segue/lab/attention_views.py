"""Attention weights of a text as the views of one page: of a language model, an encoder or a translator.

Letters: H heads, T queries, S keys.
"""

from pathlib import Path

import torch

from segue.checkpoint import Bundle, Translator
from segue.config import Reach
from segue.errors import InputError
from segue.infer.trace import TERMS, recording, recording_terms
from segue.infer.translate import looked_at
from segue.interop.bert import load_bert
from segue.lab.attention_page import View
from segue.nn.xl import TransformerXL
from segue.text.wordpiece import read_wordpiece

QUERY_TOKENS, MEMORY_TOKENS = 64, 192
"""Defaults: the most queries, and the most tokens in memory, that one page shows."""


@torch.no_grad()
def reader_views(bundle: Bundle, text: bytes, *, segment: int | None, memory: int | None) -> list[View]:
    """One view per layer: the queries are the last tokens of the text, the keys are memory and these tokens.

    By default the second half of the text is the segment, and the first half is memory.
    """
    model = bundle.model
    if not isinstance(model, TransformerXL):
        raise InputError("this model has no attention to show: it is a recurrent network")
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
    with recording(model) as weights, recording_terms(model) as terms:
        model(tokens[:, seam:], state)
    words = [piece.decode(errors="replace") for piece in pieces[first:]]
    return [
        View(
            f"layer {layer + 1}", words[remembered:], words, weights[name][0], remembered, _alone(terms[name])
        )
        for layer, name in enumerate(sorted(weights, key=_layer))
    ]


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _alone(terms: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The attention weights of each score term alone: the softmax of that term."""
    if len(terms) == 1:
        return {}
    return {TERMS[name]: term[0].softmax(dim=-1) for name, term in terms.items()}


@torch.no_grad()
def encoder_views(folder: Path, text: str) -> list[View]:
    """One view per layer of an encoder in a BERT folder; every token attends to every token."""
    model = load_bert(folder)
    files = [folder / name for name in ("tokenizer.json", "vocab.txt") if (folder / name).is_file()]
    if not files:
        raise InputError(f"{folder} has neither tokenizer.json nor vocab.txt, so no text can be read with it")
    wordpiece = read_wordpiece(files[0])
    padded = wordpiece.encode([text], model.config.max_positions)
    if padded.truncated:
        raise InputError(
            f"the text has more tokens than the {model.config.max_positions} that the encoder can read"
        )
    words = [wordpiece.file.id_to_token(int(token)) or "" for token in padded.input_ids[0]]
    with recording(model) as weights:
        model(torch.from_numpy(padded.input_ids))
    return [
        View(f"layer {layer + 1}", words, words, weights[name][0])
        for layer, name in enumerate(sorted(weights, key=_layer))
    ]


def is_encoder(folder: Path) -> bool:
    """Whether this is a BERT folder, and not a bundle of segue's."""
    config = folder / "config.json"
    return config.is_file() and '"segue-' not in config.read_text(encoding="utf-8", errors="replace")


def translator_views(translator: Translator, source: bytes, text: str) -> list[View]:
    """Self-attention of the encoder's layers and of the decoder's, and cross-attention."""
    words, written, weights = looked_at(translator, source, text)
    inputs = ["<start>", *written[:-1]]
    views = []
    for name, matrix in weights.items():
        side, layer, kind = name.split(".")
        if side == "encoder":
            views.append(View(f"encoder, layer {int(layer) + 1}", words, words, matrix))
        elif kind == "cross":
            views.append(View(f"decoder to encoder, layer {int(layer) + 1}", inputs, words, matrix))
        else:
            views.append(View(f"decoder, layer {int(layer) + 1}", inputs, inputs, matrix))
    return views
