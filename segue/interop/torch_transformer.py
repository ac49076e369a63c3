"""Conversion from state dicts of torch's own `nn.Transformer`, with embeddings and output layer as in its tutorials.

What no tensor tells is in a config of our own: heads, activation, special symbols.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, PositiveInt
from torch import Tensor

from segue.checkpoint import Translator
from segue.config import Seq2SeqConfig, Settings, Translating
from segue.errors import SourceError
from segue.interop.translators import (
    Parts,
    Symbols,
    Tables,
    attention,
    build,
    listed_symbols,
    named,
    numbered,
    order_of,
    split,
)
from segue.text.tokenizer import TextTokenizer, character_tokenizer, word_tokenizer

KIND = "torch-transformer"


def _without_folder(name: str) -> str:
    """A config of somebody else names no file of this machine."""
    if Path(name).name != name:
        raise ValueError("should be the name of a file beside the config")
    return name


BesideConfig = Annotated[str, AfterValidator(_without_folder)]


class TorchConfig(Settings):
    """What is to be told of such a model beside its tensors."""

    model_config = ConfigDict(extra="forbid")

    model_type: Literal["torch-transformer"]
    nhead: PositiveInt
    activation: Literal["relu", "gelu"] = "relu"
    norm_first: bool = False
    scale_embedding: bool = True
    start: str = "<sos>"
    end: str = "<eos>"
    unknown: str = "<unk>"
    symbols: Literal["characters", "words"] = "words"
    vocab: BesideConfig = "vocab.json"  # symbols to ids, beside the config
    source_vocab: BesideConfig = ""  # the source's, if it has its own
    source_embedding: str = "src_tok_emb.embedding.weight"
    target_embedding: str = "tgt_tok_emb.embedding.weight"
    output: str = "generator"
    transformer: str = "transformer"
    positions: str = "positional_encoding.pe"
    longest: PositiveInt = 256


def load_torch_transformer(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> Translator:
    """The translator of a state dict; its vocabulary lies beside the config."""
    theirs = TorchConfig(**config)
    parts = Parts(weights, "the state dict")
    target, target_tokenizer = _symbols(folder / theirs.vocab, theirs)
    source, source_tokenizer = target, target_tokenizer
    if theirs.source_vocab:
        source, source_tokenizer = _symbols(folder / theirs.source_vocab, theirs)
    shared = theirs.source_embedding == theirs.target_embedding
    bias = parts.get(f"{theirs.output}.bias")
    tables = Tables(
        parts[theirs.target_embedding],
        None if shared else parts[theirs.source_embedding],
        parts[f"{theirs.output}.weight"],
        bias,
        scaled=theirs.scale_embedding,
    )
    layers = _layers(parts, theirs.transformer)
    final = f"{theirs.transformer}.encoder.norm.weight" in parts
    if final:
        for side in ("encoder", "decoder"):
            layers |= named({f"{side}_norm": parts.part(f"{theirs.transformer}.{side}.norm.")})
    elif theirs.norm_first:
        raise SourceError("a pre-norm Transformer without a norm behind its last layer is not supported")
    order = _positions(parts, theirs)
    parts.check_all_taken()
    ours = Seq2SeqConfig(
        **tables.settings(target, source),
        heads=theirs.nhead,
        feedforward=len(layers["encoder.0.feed_forward.inner.bias"]),
        encoder_layers=sum(
            name.endswith("attention.out.bias") and name.startswith("encoder") for name in layers
        ),
        decoder_layers=sum(name.endswith("cross.out.bias") for name in layers),
        activation=theirs.activation,
        norm="pre" if theirs.norm_first else "post",
        final_norm=final and not theirs.norm_first,
        sinusoids=order,
    )
    model = build(ours, {**tables.weights(target, source), **layers}, "the state dict")
    translating = Translating(beam_width=1, longest=theirs.longest)
    return Translator(model, translating, source_tokenizer, target_tokenizer)


def _symbols(path: Path, theirs: TorchConfig) -> tuple[Symbols, TextTokenizer]:
    texts = listed_symbols(path)
    for name in (theirs.start, theirs.end, theirs.unknown):
        if name not in texts:
            raise SourceError(f"{path} has no symbol {name!r}; name start, end and unknown in the config")
    start, end, unknown = (texts.index(name) for name in (theirs.start, theirs.end, theirs.unknown))
    symbols = Symbols(texts, end, unknown, start)
    known = ["<unk>" if text == theirs.unknown else text for text in symbols.ours]
    make = character_tokenizer if theirs.symbols == "characters" else word_tokenizer
    return symbols, make(known)


def _positions(parts: Parts, theirs: TorchConfig) -> str:
    if theirs.positions not in parts:
        return "interleaved"
    return order_of(parts[theirs.positions], parts.name)


def _layers(parts: Parts, root: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for side in ("encoder", "decoder"):
        for layer in range(numbered(parts, f"{root}.{side}.layers.", ".linear1.weight")):
            ours, inside = f"{side}.{layer}", f"{root}.{side}.layers.{layer}"
            kinds = {"self_attn": "attention"} | ({"multihead_attn": "cross"} if side == "decoder" else {})
            for number, (their_part, our_part) in enumerate(kinds.items(), start=1):
                fused = parts.part(f"{inside}.{their_part}.in_proj_")
                query, *key_value = split(fused, 3)
                out = parts.part(f"{inside}.{their_part}.out_proj.")
                weights |= attention(f"{ours}.{our_part}", query, key_value, out)
                weights |= named({f"{ours}.{our_part}_norm": parts.part(f"{inside}.norm{number}.")})
            weights |= named(
                {
                    f"{ours}.feed_forward.inner": parts.part(f"{inside}.linear1."),
                    f"{ours}.feed_forward.outer": parts.part(f"{inside}.linear2."),
                    f"{ours}.feed_forward_norm": parts.part(f"{inside}.norm{len(kinds) + 1}."),
                }
            )
    if "encoder.0.feed_forward.inner.bias" not in weights or "decoder.0.cross.out.bias" not in weights:
        raise SourceError(f"there are no layers of an nn.Transformer under '{root}.'; name it in the config")
    return weights
