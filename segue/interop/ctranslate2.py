"""Conversion from and to models of CTranslate2, for encoder-decoder Transformers of the plain kind.

A folder has model.bin, config.json and vocabularies (JSON lists, or text). Text is cut into symbols outside: by a
tokenizer.json or a model of sentencepiece beside it, else at blanks.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from torch import Tensor

from segue.checkpoint import Translator
from segue.config import Seq2SeqConfig, Settings, Translating
from segue.errors import SourceError
from segue.interop.ctranslate2_format import read_variables
from segue.interop.sentencepiece import read_pieces
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
from segue.text.parsing import read_object
from segue.text.tokenizer import Tokenizer, load_tokenizer, word_tokenizer

ACTIVATIONS = {0: "relu", 2: "swish", 3: "gelu"}
"""Ours, by their numbers."""
SCALARS = {"num_heads", "pre_norm", "activation", "scale_embeddings", "start_from_zero_embedding"}
"""Settings that are read; all others must be off."""
HARMLESS = {"alignment_heads", "alignment_layer", "embeddings_merge"}
"""Settings that change no translation of a model with one source."""


class CTranslate2Config(Settings):
    """Its config.json."""

    model_config = ConfigDict(extra="ignore")

    bos_token: str = "<s>"  # noqa: S105 (no password)
    eos_token: str = "</s>"  # noqa: S105
    unk_token: str = "<unk>"  # noqa: S105
    decoder_start_token: str | None = "<s>"  # noqa: S105
    add_source_bos: bool = False
    add_source_eos: bool = True
    layer_norm_epsilon: float | None = None


def is_ctranslate2(source: Path) -> bool:
    """Whether there is a model of CTranslate2 in a folder, or in its folder `model`."""
    return source.is_dir() and any((folder / "model.bin").is_file() for folder in (source, source / "model"))


def load_ctranslate2(source: Path) -> Translator:
    """The translator in a folder of CTranslate2, or in a package that has it in `model`."""
    folder = source if (source / "model.bin").is_file() else source / "model"
    path = folder / "config.json"
    theirs = CTranslate2Config(**(read_object(path) if path.exists() else {}))
    if theirs.add_source_bos or not theirs.add_source_eos:
        raise SourceError(f"{folder}: sources should have an end and no start; its config says otherwise")
    if theirs.layer_norm_epsilon not in (None, 1e-5):
        raise SourceError(
            f"{folder}: layer_norm_epsilon is {theirs.layer_norm_epsilon}; only 1e-5 is supported"
        )
    parts = Parts(_whole(read_variables(folder / "model.bin")), str(folder / "model.bin"))
    tables = _tables(parts)
    zero = bool(_setting(parts, "decoder/start_from_zero_embedding", 0))
    target, source_symbols, tokenizers = _symbols(folder, theirs, zero=zero, shared=tables.source is None)
    settings, layers = _settings(parts), _layers(parts)
    _check_rest(parts)
    ours = Seq2SeqConfig(**tables.settings(target, source_symbols), **settings)
    model = build(ours, {**tables.weights(target, source_symbols), **layers}, parts.name)
    return Translator(model, Translating(), *tokenizers)


def _whole(variables: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices of numbers as they were before they were rounded; scales are used up. Aliases stay the same tensor."""
    plain: dict[str, Tensor] = {}
    done: dict[int, Tensor] = {}
    for name, tensor in variables.items():
        if name.endswith("_scale"):
            continue
        if id(tensor) not in done:
            scale = variables.get(f"{name}_scale")
            whole = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
            if scale is not None:
                whole = tensor.float() / (scale[:, None] if scale.dim() else scale)
            done[id(tensor)] = whole
        plain[name] = done[id(tensor)]
    return plain


def _tables(parts: Parts) -> Tables:
    target, out = parts["decoder/embeddings/weight"], parts["decoder/projection/weight"]
    first = "encoder/embeddings_0/weight"
    source = parts[first if first in parts else "encoder/embeddings/weight"]
    bias = parts.get("decoder/projection/bias")
    scales = {_setting(parts, f"{side}/scale_embeddings", 1) for side in ("encoder", "decoder")}
    if not scales <= {0, 1} or len(scales) > 1:
        raise SourceError(f"{parts.name} scales the embeddings of its sides differently")
    same = source is target
    return Tables(target, None if same else source, None if out is target else out, bias, scaled=1 in scales)


def _setting(parts: Parts, name: str, default: int) -> float:
    return parts[name].item() if name in parts else default


def _settings(parts: Parts) -> dict[str, Any]:
    """Heads, norms, activation and positions, which both sides share."""
    sides = []
    for side in ("encoder", "decoder"):
        activation = int(_setting(parts, f"{side}/activation", 0))
        if activation not in ACTIVATIONS:
            raise SourceError(f"{parts.name}: activation {activation} is not supported")
        sides.append(
            {
                "heads": int(_setting(parts, f"{side}/num_heads", 8)),
                "norm": "pre" if _setting(parts, f"{side}/pre_norm", 1) else "post",
                "activation": ACTIVATIONS[activation],
                "sinusoids": order_of(parts[f"{side}/position_encodings/encodings"], parts.name),
                "final": f"{side}/layer_norm/gamma" in parts,
            }
        )
    if sides[0] != sides[1]:
        raise SourceError(
            f"{parts.name}: encoder {sides[0]} and decoder {sides[1]} differ; that is not supported"
        )
    shared = sides[0]
    final = shared.pop("final")
    if shared["norm"] == "pre" and not final:
        raise SourceError(
            f"{parts.name} is pre-norm without a norm behind its last layer; that is not supported"
        )
    inner = "encoder/layer_0/ffn/linear_0/bias"
    return {
        **shared,
        "final_norm": final and shared["norm"] == "post",
        "feedforward": len(parts[inner]),
        "encoder_layers": numbered(parts, "encoder/layer_", "/ffn/linear_0/weight"),
        "decoder_layers": numbered(parts, "decoder/layer_", "/ffn/linear_0/weight"),
    }


def _layers(parts: Parts) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}

    def norm(name: str) -> dict[str, Tensor]:
        return dict(parts.part(f"{name}/layer_norm/", "gamma", "beta"))

    for side in ("encoder", "decoder"):
        for layer in range(numbered(parts, f"{side}/layer_", "/ffn/linear_0/weight")):
            ours, inside = f"{side}.{layer}", f"{side}/layer_{layer}"
            query, *key_value = split(parts.part(f"{inside}/self_attention/linear_0/"), 3)
            out = parts.part(f"{inside}/self_attention/linear_1/")
            weights |= attention(f"{ours}.attention", query, key_value, out)
            weights |= named({f"{ours}.attention_norm": norm(f"{inside}/self_attention")})
            if side == "decoder":
                three = [parts.part(f"{inside}/attention/linear_{number}/") for number in range(3)]
                weights |= attention(f"{ours}.cross", three[0], [three[1]], three[2])
                weights |= named({f"{ours}.cross_norm": norm(f"{inside}/attention")})
            weights |= named(
                {
                    f"{ours}.feed_forward.inner": parts.part(f"{inside}/ffn/linear_0/"),
                    f"{ours}.feed_forward.outer": parts.part(f"{inside}/ffn/linear_1/"),
                    f"{ours}.feed_forward_norm": norm(f"{inside}/ffn"),
                }
            )
        if f"{side}/layer_norm/gamma" in parts:
            weights |= named({f"{side}_norm": norm(side)})
    return weights


def _check_rest(parts: Parts) -> None:
    """Settings that are off are fine; what is on and unknown is named."""
    for name, tensor in parts.weights.items():
        setting = name.rsplit("/", 1)[-1]
        if tensor.dim() == 0 and (setting in SCALARS | HARMLESS or not tensor.item()):
            parts.taken.add(name)
    parts.check_all_taken()


def _symbols(
    folder: Path, theirs: CTranslate2Config, *, zero: bool, shared: bool
) -> tuple[Symbols, Symbols, tuple[Tokenizer, Tokenizer]]:
    """The symbols of target and source, and the tokenizers of source and target."""
    names = ("shared", "shared") if _vocabulary(folder, "shared") else ("source", "target")
    cut = [_cutter(folder, side) for side in ("source", "target")]
    pieces = [read_pieces(path) if path is not None and path.suffix != ".json" else None for path in cut]
    both = []
    for name, some in zip(names, pieces, strict=True):
        path = _vocabulary(folder, name)
        if path is None:
            raise SourceError(f"{folder} has neither a shared_vocabulary nor a {name}_vocabulary")
        texts = listed_symbols(path) if path.suffix == ".json" else _lines(path)
        known = set(texts)
        missing = () if some is None else tuple(piece for piece in some.scores if piece not in known)
        start = None if zero else _place(texts, theirs.decoder_start_token or theirs.bos_token, path)
        end = _place(texts, theirs.eos_token, path)
        unknown = texts.index(theirs.unk_token) if theirs.unk_token in texts else None
        both.append(Symbols(texts, end, unknown, start, missing))
    if shared:
        added = dict.fromkeys((*both[0].added, *both[1].added))
        both = [Symbols(one.texts, one.end, one.unknown, one.start, tuple(added)) for one in both]
    tokenizers: list[Tokenizer] = []
    for symbols, some, path in zip(both, pieces, cut, strict=True):
        if some is not None:
            tokenizers.append(symbols.tokenizer(some))
        elif path is not None:
            tokenizers.append(load_tokenizer(path))
        else:
            tokenizers.append(word_tokenizer(symbols.ours))
    return both[1], both[0], (tokenizers[0], tokenizers[1])


def _vocabulary(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}_vocabulary.json", folder / f"{name}_vocabulary.txt")
    return next((path for path in paths if path.is_file()), None)


def _cutter(folder: Path, side: str) -> Path | None:
    """What cuts text of one side into symbols: in the folder, or beside it."""
    own = ("source-tokenizer.json",) if side == "source" else ()
    names = (*own, "tokenizer.json", f"{side}.spm", "sentencepiece.model")
    paths = (place / name for place in (folder, folder.parent) for name in names)
    return next((path for path in paths if path.is_file()), None)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def _place(texts: list[str], symbol: str, path: Path) -> int:
    if symbol not in texts:
        raise SourceError(f"{path} has no symbol {symbol!r}, which its config.json names")
    return texts.index(symbol)
