"""Translates lines of standard input with a translator exported to ONNX: greedy search by onnxruntime and numpy alone.

segue export runs/en-de -o en-de-onnx --to onnx
python examples/onnx_translate.py en-de-onnx < sentences.en
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from onnx_generate import tokenizer


def main(folder: Path) -> None:
    settings = json.loads((folder / "onnx.json").read_text())
    encoder, decoder = (
        onnxruntime.InferenceSession(folder / name) for name in ("encoder.onnx", "decoder.onnx")
    )
    own = (folder / "source-tokenizer.json").exists()
    encode, _ = tokenizer(folder / ("source-tokenizer.json" if own else "tokenizer.json"))
    _, decode = tokenizer(folder / "tokenizer.json")
    rows = {"lanes": 1, "memory": 0}
    memory_shape = [rows.get(size, size) for size in decoder.get_inputs()[3].shape]
    for line in sys.stdin:
        if not line.strip():  # as `segue translate` does
            print()
            continue
        source = np.array([[*encode(line.rstrip("\n")), settings["source_end"]]])
        fixed = {"lengths": np.array([source.shape[1]])}
        fixed["keys_values"] = encoder.run(None, {"source": source, **fixed})[0]
        memory, seen, ids = np.zeros(memory_shape, np.float32), np.zeros(1, np.int64), [settings["start"]]
        while ids[-1] != settings["end"] and len(ids) <= settings["longest"]:
            inputs = {"tokens": np.array([ids[-1:]]), "memory": memory, "seen": seen, **fixed}
            logprobs, memory, seen = decoder.run(None, inputs)
            logprobs[..., settings["start"]] = -np.inf  # a start is never inside
            ids.append(int(logprobs[0, -1].argmax()))
        print(decode([number for number in ids if number not in (settings["start"], settings["end"])]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
