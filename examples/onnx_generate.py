"""Generates text with a language model exported to ONNX: onnxruntime and numpy alone, memory at constant size.

segue export runs/demo -o demo-onnx --to onnx
python examples/onnx_generate.py demo-onnx "def read(" 200

A tokenizer that is not of bytes needs the library `tokenizers` too.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def tokenizer(path: Path) -> tuple[Any, Any]:
    """Text to ids, and ids to text."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("segue") != "bytes":
        from tokenizers import Tokenizer

        file = Tokenizer.from_file(str(path))
        return lambda text: file.encode(text, add_special_tokens=False).ids, file.decode
    symbols = bytes(content["symbols"])
    return (
        lambda text: [*map(symbols.index, text.encode())],
        lambda ids: bytes(map(symbols.__getitem__, ids)).decode(errors="replace"),
    )


def main(folder: Path, prompt: str, count: int) -> None:
    settings, (encode, decode) = (
        json.loads((folder / "onnx.json").read_text()),
        tokenizer(folder / "tokenizer.json"),
    )
    session, draw = onnxruntime.InferenceSession(folder / "model.onnx"), np.random.default_rng(0)
    sizes, kinds = (
        {"lanes": 1, "memory": settings["memory"]},
        {"tensor(int64)": np.int64, "tensor(float)": np.float32},
    )
    state = {
        one.name: np.zeros([sizes.get(size, size) for size in one.shape], kinds[one.type])
        for one in session.get_inputs()[1:]
    }
    ids, read = encode(prompt), 0
    while len(ids) < count:
        segment = ids[read : read + settings["segment"]]
        logprobs, *after = session.run(None, {"tokens": np.array([segment]), **state})
        state, read = dict(zip(state, after, strict=True)), read + len(segment)
        if read == len(ids):
            noise = 0.8 * draw.gumbel(size=logprobs.shape[-1])  # the largest sum is a draw at temperature 0.8
            ids.append(int((logprobs[0, -1] + noise).argmax()))
    print(decode(ids))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
