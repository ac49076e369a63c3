"""Embedding texts, ours beside onnxruntime in float32, on the same weights: batches of 32 texts of 32 to 128 tokens.

    python bench/embedding.py [--weights FOLDER] [--threads 2] [--rounds 10]

Needs segue, transformers, onnx and onnxruntime (`make bench` installs them). Without a folder of a BERT the weights are
random, of all-MiniLM-L6-v2's shape. Both get the same token ids and give mean-pooled vectors, in turns; the best round
of each counts. onnxruntime pads a batch to its longest text; segue does not pad. With --threads 1 the clock is the
processor's, which other processes do not disturb.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from machine import best_in_turns
from segue.checkpoint import TextEncoder
from segue.config import EncoderReading
from segue.infer.embed import embed_pieces
from segue.interop.bert import build_encoder
from segue.text.wordpiece import Pieces, WordPiece

SHAPE = {"vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
SHAPE |= {"intermediate_size": 1536, "max_position_embeddings": 512}
NAMES = ["input_ids", "attention_mask", "token_type_ids"]
TEXTS = 32


class States(torch.nn.Module):
    """The last states alone, for the exporter."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types)[0]
        return states


def exported(bert: torch.nn.Module, threads: int) -> Any:
    """An onnxruntime session of the model."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        axes = {name: {0: "texts", 1: "tokens"} for name in (*NAMES, "states")}
        sample = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in NAMES)
        more = {"dynamo": False} if "dynamo" in torch.onnx.export.__code__.co_varnames else {}
        torch.onnx.export(
            States(bert), sample, path, input_names=NAMES, output_names=["states"], dynamic_axes=axes,
            opset_version=17, **more,
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def theirs(session: Any, ids: list[np.ndarray]) -> np.ndarray:
    size = max(map(len, ids))
    padded = np.zeros((len(ids), size), dtype=np.int64)
    mask = np.zeros_like(padded)
    for row, one in enumerate(ids):
        padded[row, : len(one)], mask[row, : len(one)] = one, 1
    states = session.run(None, dict(zip(NAMES, (padded, mask, np.zeros_like(padded)), strict=True)))[0]
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def ours(encoder: TextEncoder, ids: list[list[int]]) -> np.ndarray:
    pieces = [Pieces(one, [0] * len(one), False) for one in ids]
    return embed_pieces(encoder, pieces, encoder.reading, -1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    if asked.weights:
        bert = transformers.BertModel.from_pretrained(asked.weights).eval()
    else:
        bert = transformers.BertModel(transformers.BertConfig(**SHAPE)).eval()
    model = build_encoder(bert.config.to_dict() | {"model_type": "bert"}, bert.state_dict(), "the model")
    from tokenizers import Tokenizer, models

    unused = WordPiece(Tokenizer(models.WordLevel({}, unk_token="")))  # ids are given
    encoder = TextEncoder(model, unused, EncoderReading(max_length=512, pooling="mean"))
    session = exported(bert, asked.threads)
    draw, rows = np.random.default_rng(0), []
    for name, low, high in (("32", 32, 32), ("64", 64, 64), ("128", 128, 128), ("32 to 128", 32, 128)):
        ids = [draw.integers(1000, 30000, length) for length in draw.integers(low, high + 1, TEXTS)]
        lists = [one.tolist() for one in ids]
        difference = float(np.abs(ours(encoder, lists) - theirs(session, ids)).max())
        calls = {"segue": lambda i=lists: ours(encoder, i), "onnxruntime": lambda i=ids: theirs(session, i)}
        seconds = best_in_turns(calls, 3 if asked.quick else asked.rounds, asked.threads)
        rows.append(
            {"tokens": name, "difference": difference}
            | {key: TEXTS / value for key, value in seconds.items()}
        )
        print(
            f"{TEXTS} texts of {name:>9} tokens: segue {rows[-1]['segue']:7.1f} texts/s, onnxruntime "
            f"{rows[-1]['onnxruntime']:7.1f}, ratio {rows[-1]['segue'] / rows[-1]['onnxruntime']:.2f}, "
            f"largest difference {difference:.0e}",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps({"threads": asked.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
