"""Scratch tensors, kept for the next call. On a CPU, fresh memory costs more than the numbers that are put there."""

import math
import threading

import torch
from torch import Tensor

BUFFERS = threading.local()
"""Each thread has its own."""


def scratch(use: str, *shape: int, like: Tensor) -> Tensor:
    """An uninitialised tensor, valid until the next call for the same use in this thread."""
    if like.device.type != "cpu":  # the allocators of GPUs keep memory themselves
        return like.new_empty(shape)
    buffers: dict[tuple[str, torch.dtype], Tensor] = BUFFERS.__dict__.setdefault("buffers", {})
    size, key = math.prod(shape), (use, like.dtype)
    if key not in buffers or buffers[key].numel() < size:
        with torch.inference_mode(False):  # else the tensor could be written to in that mode alone
            buffers[key] = torch.empty(size, dtype=like.dtype)
    return buffers[key][:size].view(shape)
