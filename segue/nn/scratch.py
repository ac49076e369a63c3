"""Room for what is computed and forgotten. On a CPU, fresh memory costs more than what is put there."""

import math
import threading

import torch
from torch import Tensor

KEPT = threading.local()
"""Each thread's own."""


def scratch(use: str, *shape: int, like: Tensor) -> Tensor:
    """Unwritten, and written over at the next call: for what does not outlive this one."""
    if like.device.type != "cpu":  # the allocators of GPUs keep theirs
        return like.new_empty(shape)
    rooms: dict[tuple[str, torch.dtype], Tensor] = KEPT.__dict__.setdefault("rooms", {})
    size, key = math.prod(shape), (use, like.dtype)
    if key not in rooms or rooms[key].numel() < size:
        with torch.inference_mode(False):  # whose tensors could be written to in that mode alone
            rooms[key] = torch.empty(size, dtype=like.dtype)
    return rooms[key][:size].view(shape)
