"""Export of encoder-decoder Transformers to CTranslate2, an engine made for serving translators.

Vocabularies are written as lists of symbols, and the tokenizers beside them; int8 has a scale for each row of a matrix.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer as TokenizerFile
from torch import Tensor

from segue.checkpoint import Translator, write_json
from segue.config import Seq2SeqConfig
from segue.errors import SourceError
from segue.files import atomic_folder
from segue.interop.ctranslate2 import ACTIVATIONS
from segue.interop.ctranslate2_format import quantized, write_variables
from segue.nn.positions import interleaved_sinusoids, sinusoids
from segue.nn.seq2seq import Seq2Seq
from segue.text.corpus import TOKENIZER
from segue.text.pairs import SOURCE_TOKENIZER
from segue.text.tokenizer import ByteTokenizer, Tokenizer

POSITIONS = 2048
"""Rows of the table of positions: no text may be longer."""


def export_ctranslate2(translator: Translator, target: Path, *, int8: bool = False) -> list[str]:
    """Write a folder of CTranslate2; returns notes on what it cannot express."""
    model, config = translator.model, translator.model.config
    if not isinstance(model, Seq2Seq) or not isinstance(config, Seq2SeqConfig):
        raise SourceError(f"CTranslate2 has encoder-decoder Transformers; this is a {config.kind} model")
    _check_plain(config)
    lists = {"target": _symbols(translator.target)}
    if translator.has_source_tokenizer:
        lists["source"] = _symbols(translator.source)
    start, end = _unused("<s>", lists), _unused("</s>", lists)
    variables = _variables(
        {name: weight.detach().float() for name, weight in model.state_dict().items()}, config
    )
    aliases = _aliases(config)
    if int8:
        variables = _rounded(variables)
        aliases |= {
            f"{alias}_scale": f"{name}_scale"
            for alias, name in aliases.items()
            if f"{name}_scale" in variables
        }
    with atomic_folder(target, SourceError) as folder:
        write_variables(folder / "model.bin", variables, aliases)
        write_json(folder / "config.json", _facts(start, end))
        if "source" not in lists:
            lists = {"shared": lists["target"]}
        for name, texts in lists.items():
            write_json(folder / f"{name}_vocabulary.json", [*texts, start, end])
        (folder / TOKENIZER).write_text(translator.target.json(), encoding="utf-8")
        if translator.has_source_tokenizer:
            (folder / SOURCE_TOKENIZER).write_text(translator.source.json(), encoding="utf-8")
    return ["text is made lower-case before translation, which is not written"] if translator.lower else []


def _check_plain(config: Seq2SeqConfig) -> None:
    plain = {"encoding": "sinusoidal", "divisor": 1, "cutoffs": (), "embedding": config.width}
    for name, value in plain.items():
        if getattr(config, name) != value:
            raise SourceError(
                f"CTranslate2 has no {name} {getattr(config, name)!r}; only {value!r} can be exported"
            )
    if config.heads * config.head_width != config.width:
        raise SourceError("CTranslate2 has no heads that are wider or narrower than width / heads")


def _symbols(tokenizer: Tokenizer) -> list[str]:
    """The symbol of each id of text."""
    if isinstance(tokenizer, ByteTokenizer):
        return [f"<0x{byte:02X}>" for byte in tokenizer.symbols]
    texts = {number: text for text, number in TokenizerFile.from_str(tokenizer.json()).get_vocab().items()}
    return [texts.get(number, f"<unused{number}>") for number in range(tokenizer.size)]


def _unused(name: str, lists: dict[str, list[str]]) -> str:
    """The name, lengthened until no symbol of text has it."""
    while any(name in texts for texts in lists.values()):
        name = f"<{name}>"
    return name


def _facts(start: str, end: str) -> dict[str, object]:
    return {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": start,
        "decoder_start_token": start,
        "eos_token": end,
        "layer_norm_epsilon": 1e-5,
        "unk_token": "<unk>",
    }


def _variables(weights: dict[str, Tensor], config: Seq2SeqConfig) -> dict[str, Tensor]:
    """Our weights under their names. Keys and values are one matrix here, and behind the queries there."""
    variables: dict[str, Tensor] = {}

    def linear(name: str, *ours: str) -> None:
        for kind in ("weight", "bias"):
            variables[f"{name}/{kind}"] = torch.cat([weights[f"{one}.{kind}"] for one in ours])

    def norm(name: str, ours: str) -> None:
        variables[f"{name}/layer_norm/gamma"] = weights[f"{ours}.weight"]
        variables[f"{name}/layer_norm/beta"] = weights[f"{ours}.bias"]

    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(layers):
            ours, inside = f"{side}.{layer}", f"{side}/layer_{layer}"
            fused = (f"{ours}.attention.query", f"{ours}.attention.key_value")
            linear(f"{inside}/self_attention/linear_0", *fused)
            linear(f"{inside}/self_attention/linear_1", f"{ours}.attention.out")
            norm(f"{inside}/self_attention", f"{ours}.attention_norm")
            if side == "decoder":
                for number, part in enumerate(("query", "key_value", "out")):
                    linear(f"{inside}/attention/linear_{number}", f"{ours}.cross.{part}")
                norm(f"{inside}/attention", f"{ours}.cross_norm")
            linear(f"{inside}/ffn/linear_0", f"{ours}.feed_forward.inner")
            linear(f"{inside}/ffn/linear_1", f"{ours}.feed_forward.outer")
            norm(f"{inside}/ffn", f"{ours}.feed_forward_norm")
        if f"{side}_norm.weight" in weights:
            norm(side, f"{side}_norm")
        variables |= _settings(side, config)
    variables |= _tables(weights, config)
    return variables


def _settings(side: str, config: Seq2SeqConfig) -> dict[str, Tensor]:
    numbers = {ours: number for number, ours in ACTIVATIONS.items()}
    values = {
        "pre_norm": config.norm == "pre",
        "activation": numbers[config.activation],
        "scale_embeddings": True,
        **({"embeddings_merge": 0} if side == "encoder" else {}),
    }
    settings = {
        f"{side}/{name}": torch.tensor(int(value), dtype=torch.int8) for name, value in values.items()
    }
    return settings | {f"{side}/num_heads": torch.tensor(config.heads, dtype=torch.int16)}


def _tables(weights: dict[str, Tensor], config: Seq2SeqConfig) -> dict[str, Tensor]:
    encode = interleaved_sinusoids if config.sinusoids == "interleaved" else sinusoids
    tables = {
        "decoder/embeddings/weight": weights["vocabulary.tables.0"],
        "decoder/position_encodings/encodings": encode(torch.arange(POSITIONS), config.width, torch.float32),
    }
    if config.source_vocab:
        tables["encoder/embeddings_0/weight"] = weights["source_vocabulary.tables.0"]
    if not config.tied:
        tables["decoder/projection/weight"] = weights["vocabulary.out_tables.0"]
    if config.output_bias:
        tables["decoder/projection/bias"] = weights["vocabulary.biases.0"]
    return tables


def _aliases(config: Seq2SeqConfig) -> dict[str, str]:
    """Names of what is written once."""
    aliases = {"encoder/position_encodings/encodings": "decoder/position_encodings/encodings"}
    if config.tied:
        aliases["decoder/projection/weight"] = "decoder/embeddings/weight"
    if not config.source_vocab:
        aliases["encoder/embeddings_0/weight"] = "decoder/embeddings/weight"
    return aliases


def _rounded(variables: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix as int8 with a scale for each row; the rest as it is."""
    rounded: dict[str, Tensor] = {}
    for name, tensor in variables.items():
        if name.endswith("/weight"):
            rounded[name], rounded[f"{name}_scale"] = quantized(tensor)
        else:
            rounded[name] = tensor
    return rounded
