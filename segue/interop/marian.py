"""Conversion from Hugging Face's MarianMTModel, the layout of the OPUS-MT translators.

A folder has config.json, the weights, vocab.json (symbols to ids; perhaps target_vocab.json) and the sentencepiece
models source.spm and target.spm.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict
from torch import Tensor

from segue.checkpoint import Translator
from segue.config import Seq2SeqConfig, Settings, Translating
from segue.errors import SourceError
from segue.interop.sentencepiece import read_pieces
from segue.interop.translators import (
    Parts,
    Symbols,
    Tables,
    attention,
    build,
    listed_symbols,
    named,
    order_of,
)

ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}


class MarianConfig(Settings):
    """The keys of its config.json that segue uses; other keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    model_type: Literal["marian"]
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    eos_token_id: int
    decoder_start_token_id: int
    activation_function: Literal["swish", "silu", "relu", "gelu"] = "gelu"
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    normalize_before: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    max_length: int = 512
    num_beams: int = 4


def load_marian(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> Translator:
    """The translator in a Marian folder."""
    theirs = MarianConfig(**config)
    for name in ("attention_heads", "ffn_dim"):
        both = getattr(theirs, f"encoder_{name}"), getattr(theirs, f"decoder_{name}")
        if both[0] != both[1]:
            raise SourceError(f"{folder}: {name} is {both[0]} in the encoder and {both[1]} in the decoder; "
                              "only equal ones are supported")  # fmt: skip
    shared = theirs.share_encoder_decoder_embeddings
    target, source, tokenizers = _symbols(folder, theirs, shared=shared)
    parts = Parts(weights, str(folder))
    tables, order = _tables(parts, theirs, shared=shared), _positions(parts)
    layers = _layers(parts, theirs)
    parts.check_all_taken()
    ours = Seq2SeqConfig(
        **tables.settings(target, source),
        heads=theirs.encoder_attention_heads,
        feedforward=theirs.encoder_ffn_dim,
        encoder_layers=theirs.encoder_layers,
        decoder_layers=theirs.decoder_layers,
        activation=ACTIVATIONS[theirs.activation_function],
        sinusoids=order,
        dropout=theirs.dropout,
        attention_dropout=theirs.attention_dropout,
    )
    model = build(ours, {**tables.weights(target, source), **layers}, str(folder))
    translating = Translating(beam_width=theirs.num_beams, longest=theirs.max_length)
    return Translator(model, translating, *tokenizers)


def _symbols(folder: Path, theirs: MarianConfig, *, shared: bool) -> tuple[Symbols, Symbols, tuple[Any, Any]]:
    """The symbols of target and source, and the tokenizers of source and target."""
    pieces = [read_pieces(folder / name) for name in ("source.spm", "target.spm")]
    own = folder / "target_vocab.json"
    lists = [
        listed_symbols(folder / "vocab.json"),
        listed_symbols(own if own.exists() else folder / "vocab.json"),
    ]
    symbols = []
    for texts, cut in zip(lists, pieces, strict=True):
        known = set(texts)
        symbols.append(
            Symbols(
                texts,
                end=theirs.eos_token_id,
                unknown=texts.index("<unk>") if "<unk>" in known else None,
                start=theirs.decoder_start_token_id,
                added=tuple(piece for piece in cut.scores if piece not in known),
            )
        )
    if shared:  # one list for both sides
        both = dict.fromkeys((*symbols[0].added, *symbols[1].added))
        one = Symbols(symbols[0].texts, symbols[0].end, symbols[0].unknown, symbols[0].start, tuple(both))
        symbols = [one, one]
    source, target = symbols
    return target, source, (source.tokenizer(pieces[0]), target.tokenizer(pieces[1]))


def _tables(parts: Parts, theirs: MarianConfig, *, shared: bool) -> Tables:
    """Tied tables may be stored under one of their names or several."""
    encoder, decoder = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    names = [name for name in ("model.shared.weight", decoder, "lm_head.weight", encoder) if name in parts]
    if not names:
        raise SourceError(f"{parts.name} has no table of embeddings; is it a MarianMTModel?")
    target = parts["model.shared.weight" if shared and "model.shared.weight" in parts else names[0]]
    if not shared:
        target = parts[decoder if decoder in parts else "lm_head.weight"]
    source = None if shared else parts[encoder]
    out = None if theirs.tie_word_embeddings else parts["lm_head.weight"]
    parts.taken.update(names)  # further names of the same table
    bias = parts.get("final_logits_bias")
    return Tables(target, source, out, bias, scaled=theirs.scale_embedding)


def _positions(parts: Parts) -> str:
    orders = {
        order_of(parts[name], parts.name)
        for side in ("encoder", "decoder")
        if (name := f"model.{side}.embed_positions.weight") in parts
    }
    if len(orders) > 1:
        raise SourceError(f"{parts.name} has other positions in its encoder than in its decoder")
    return orders.pop() if orders else "concatenated"


def _layers(parts: Parts, theirs: MarianConfig) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for side, count in (("encoder", theirs.encoder_layers), ("decoder", theirs.decoder_layers)):
        for layer in range(min(count, len(parts.weights))):
            ours, inside = f"{side}.{layer}", f"model.{side}.layers.{layer}"
            kinds = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if side == "decoder" else {})
            for their_part, our_part in kinds.items():
                query, key, value, out = (
                    parts.part(f"{inside}.{their_part}.{name}_proj.") for name in ("q", "k", "v", "out")
                )
                weights |= attention(f"{ours}.{our_part}", query, (key, value), out)
                norm = parts.part(f"{inside}.{their_part}_layer_norm.")
                weights |= named({f"{ours}.{our_part}_norm": norm})
            weights |= named(
                {
                    f"{ours}.feed_forward.inner": parts.part(f"{inside}.fc1."),
                    f"{ours}.feed_forward.outer": parts.part(f"{inside}.fc2."),
                    f"{ours}.feed_forward_norm": parts.part(f"{inside}.final_layer_norm."),
                }
            )
    return weights
