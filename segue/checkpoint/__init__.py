"""Bundles: a trained model on disk, in safetensors and JSON, with checksums. Never a pickle.

    config.json         the shape of the model, and how to read with it
    model.safetensors   its weights
    tokenizer.json      if it has one
    SHA256SUMS          in the format of `sha256sum -c`

A run has such folders under `checkpoints/`, one for each saved step, each with the state of training in it.

A bundle is written atomically (`segue/files.py`): whatever happens, either the old one or the new one is complete.
"""

from segue.checkpoint.averaging import average
from segue.checkpoint.bundles import (
    Bundle,
    Translator,
    describe_bundle,
    describe_translator,
    load,
    load_translator,
    task_of,
    translates,
)
from segue.checkpoint.encoders import TextEncoder, describe_encoder, load_encoder_bundle
from segue.checkpoint.files import (
    CHECKSUMS,
    CONFIG,
    COUNTERS,
    WEIGHTS,
    read_json,
    read_tensors,
    seal,
    verify,
    write_json,
    write_tensors,
)
from segue.checkpoint.runs import (
    CHECKPOINTS,
    best_checkpoint,
    checkpoint_path,
    checkpoints,
    newest_checkpoints,
    step_of,
)

__all__ = [
    "CHECKPOINTS",
    "CHECKSUMS",
    "CONFIG",
    "COUNTERS",
    "WEIGHTS",
    "Bundle",
    "TextEncoder",
    "Translator",
    "average",
    "best_checkpoint",
    "checkpoint_path",
    "checkpoints",
    "describe_bundle",
    "describe_encoder",
    "describe_translator",
    "load",
    "load_encoder_bundle",
    "load_translator",
    "newest_checkpoints",
    "read_json",
    "read_tensors",
    "seal",
    "step_of",
    "task_of",
    "translates",
    "verify",
    "write_json",
    "write_tensors",
]
