"""Export to ONNX: a folder with graphs, their tokenizers and the settings to read with them. Needs the extra `onnx`.

    onnx.json        kind, task, files, and what the caller must know: memory length, special tokens
    model.onnx       a language model's step, or an encoder; encoder.onnx and decoder.onnx of a translator
    tokenizer.json   as in the bundle, and source-tokenizer.json if there is one

Outputs that go in again have the names of their inputs behind `new.`.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from segue.checkpoint import Bundle, TextEncoder, Translator, write_json
from segue.errors import SourceError
from segue.files import atomic_folder
from segue.interop.onnx_both_sided import SourceStep, TargetStep, TextStep, exportable
from segue.interop.onnx_graph import OPSET, import_onnx, traced
from segue.interop.onnx_int8 import rounded
from segue.interop.onnx_language import language_step
from segue.text.corpus import TOKENIZER
from segue.text.pairs import SOURCE_TOKENIZER
from segue.text.special_tokens import special_tokens

SETTINGS = "onnx.json"

LANES, TOKENS, HELD, SOURCE = 3, 5, 4, 7
"""Sizes of the example that is traced: different ones, so that none is mistaken for another."""

Model = TypeVar("Model", bound=nn.Module)


def export_onnx(model: Bundle | Translator | TextEncoder, target: Path, *, int8: bool = False) -> list[str]:
    """Write a folder with ONNX files; returns notes on what they cannot express."""
    import_onnx()
    notes: list[str] = []
    if isinstance(model, Bundle):
        files, settings = _language(model)
        tokenizers = {} if model.tokenizer is None else {TOKENIZER: model.tokenizer.json()}
    elif isinstance(model, Translator):
        files, settings = _translator(model)
        tokenizers = {TOKENIZER: model.target.json()}
        if model.has_source_tokenizer:
            tokenizers[SOURCE_TOKENIZER] = model.source.json()
        notes += ["text is made lower-case before translation, which is not written"] if model.lower else []
    else:
        files, settings = _encoder(model)
        tokenizers = {TOKENIZER: model.tokenizer.json()}
    facts = {"format": "onnx", "opset": OPSET, "weights": "int8" if int8 else "float32", "files": list(files)}
    with atomic_folder(target, SourceError) as folder:
        for name, graph in files.items():
            content = (rounded(graph) if int8 else graph).SerializeToString()
            (folder / name).write_bytes(content)
        for name, text in tokenizers.items():
            (folder / name).write_text(text, encoding="utf-8")
        write_json(folder / SETTINGS, facts | settings)
    return notes


def _language(bundle: Bundle) -> tuple[dict[str, Any], dict[str, Any]]:
    config, reach = bundle.model.config, bundle.reading.reach
    step = language_step(_single(bundle.model), reach)
    inputs, free = {"tokens": _ids(LANES, TOKENS)}, {"tokens": _axes("tokens")}
    for name, shape in step.memory_shapes.items():
        inputs[name] = torch.zeros(LANES, *(HELD if isinstance(size, str) else size for size in shape))
        axes = {0: "lanes"} | {at: size for at, size in enumerate(shape, 1) if isinstance(size, str)}
        free |= {name: axes, f"new.{name}": axes}
    inputs["seen"] = torch.arange(LANES)
    free |= {"logprobs": _axes("tokens"), "seen": _axes(), "new.seen": _axes()}
    outputs = ["logprobs", *(f"new.{name}" for name in inputs if name != "tokens")]
    graph = traced(step, inputs, outputs, free)
    settings = {
        "kind": config.kind,
        "task": "language",
        "memory": reach.memory,
        "segment": bundle.reading.segment,
    }
    return {"model.onnx": graph}, settings


def _translator(translator: Translator) -> tuple[dict[str, Any], dict[str, Any]]:
    model = exportable(_single(translator.model))
    config, target = model.config, TargetStep(model)
    source = {"source": _ids(LANES, SOURCE), "lengths": SOURCE - torch.arange(LANES)}
    rows = {0: "lanes", 3: "source"}
    encoder = traced(
        SourceStep(model),
        source,
        ["keys_values"],
        {"source": _axes("source"), "lengths": _axes(), "keys_values": rows},
    )
    layers, two, *row = target.row
    inputs = {
        "tokens": _ids(LANES, TOKENS),
        "keys_values": torch.zeros(LANES, len(model.decoder), two, SOURCE, *row),
        "lengths": source["lengths"],
        "memory": torch.zeros(LANES, layers, two, HELD, *row),
        "seen": torch.full((LANES,), HELD),
    }
    free = {
        "tokens": _axes("tokens"),
        "keys_values": rows,
        "lengths": _axes(),
        "memory": {0: "lanes", 3: "memory"},
        "seen": _axes(),
        "logprobs": _axes("tokens"),
        "new.memory": {0: "lanes", 3: "new_memory"},
        "new.seen": _axes(),
    }
    decoder = traced(target, inputs, ["logprobs", "new.memory", "new.seen"], free)
    start, end = special_tokens(config.vocab)
    settings = {
        "kind": config.kind,
        "task": "translation",
        "start": start,
        "end": end,
        "source_end": special_tokens(config.source_vocab or config.vocab).end,
        "longest": translator.translating.longest,
    }
    return {"encoder.onnx": encoder, "decoder.onnx": decoder}, settings


def _encoder(encoder: TextEncoder) -> tuple[dict[str, Any], dict[str, Any]]:
    step = TextStep(_single(encoder.model), encoder.reading)
    longest = encoder.model.config.max_positions
    mask = torch.ones(LANES, min(longest, max(SOURCE, encoder.model.config.rank)), dtype=torch.int64)
    mask[1, -1] = 0  # padding, or its mask would be left out of the graph
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": mask,
        "token_type_ids": torch.zeros_like(mask),
    }
    free = {name: _axes("tokens") for name in inputs}
    free |= {name: dict(list(_axes("tokens").items())[:axes]) for name, axes in step.outputs.items()}
    graph = traced(step, inputs, list(step.outputs), free)
    task, reading = encoder.model.task, encoder.reading
    settings = {
        "kind": encoder.model.config.kind,
        "task": "encoding" if task is None else task.task,
        "labels": [] if task is None else list(task.labels),
        "max_length": reading.max_length,
    }
    return {"model.onnx": graph}, settings


def _single(model: Model) -> Model:
    """A copy in float32 on the CPU, ready to read."""
    return deepcopy(model).float().cpu().eval().requires_grad_(False)


def _ids(lanes: int, size: int) -> Tensor:
    return torch.zeros(lanes, size, dtype=torch.int64)


def _axes(name: str = "") -> Mapping[int, str]:
    return {0: "lanes"} | ({1: name} if name else {})
