"""Writes TensorFlow checkpoints byte by byte, as the format is described, with a checksum of its own."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

MAGIC = 0xDB4775248B80FB57
TYPES = {torch.float32: 1, torch.float64: 2, torch.int64: 9, torch.bfloat16: 14, torch.float16: 19}


def masked(data: bytes) -> int:
    """CRC-32C bit by bit, turned and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: a varint, or bytes behind their length. Zeros are left out, as in TensorFlow."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def block(entries: Sequence[tuple[bytes, bytes]], *, every: int = 16) -> bytes:
    """A block with its trailer; keys share their beginning with the key before, except at a restart."""
    out, restarts, before = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    out += b"".join(struct.pack("<I", place) for place in (*restarts, len(restarts)))
    content = bytes(out) + b"\0"
    return content + struct.pack("<I", masked(content))


def table(entries: Sequence[tuple[bytes, bytes]], *, per_block: int = 20) -> bytes:
    """A sorted table: data blocks, an empty meta index, the index, the footer."""
    out, handles = bytearray(), []

    def written(content: bytes) -> bytes:
        handle = varint(len(out)) + varint(len(content) - 5)
        out.extend(content)
        return handle

    for first in range(0, len(entries), per_block):
        some = entries[first : first + per_block]
        handles.append((some[-1][0] + b"~", written(block(some))))
    footer = written(block([])) + written(block(handles, every=1))
    return bytes(out) + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def entry(tensor: Tensor, shard: int, offset: int, content: bytes) -> bytes:
    shape = b"".join(field(2, field(1, size)) for size in tensor.shape)
    numbers = field(1, TYPES[tensor.dtype]) + field(2, shape) + field(3, shard) + field(4, offset)
    return numbers + field(5, len(content)) + varint(6 << 3 | 5) + struct.pack("<I", masked(content))


def write_checkpoint(
    folder: Path, weights: Mapping[str, Tensor], *, step: int = 0, shards: int = 1, extra: bytes = b""
) -> Path:
    """The files of a checkpoint; its `.index` is returned. `extra` is added to the entry of every variable."""
    folder.mkdir(exist_ok=True)
    data = [bytearray() for _ in range(shards)]
    entries = [(b"", field(1, shards) + field(3, field(1, 1)))]
    for number, (name, tensor) in enumerate(sorted(weights.items())):
        content = (
            tensor.contiguous().view(torch.uint8).numpy().tobytes()
            if tensor.dim()
            else tensor.numpy().tobytes()
        )
        shard = data[number % shards]
        entries.append((name.encode(), entry(tensor, number % shards, len(shard), content) + extra))
        shard += content
    stem = f"model.ckpt-{step}"
    for number, shard in enumerate(data):
        (folder / f"{stem}.data-{number:05}-of-{shards:05}").write_bytes(shard)
    (folder / f"{stem}.index").write_bytes(table(entries))
    (folder / "checkpoint").write_text(
        f'model_checkpoint_path: "{stem}"\nall_model_checkpoint_paths: "{stem}"\n'
    )
    return folder / f"{stem}.index"
