"""Writes models of sentencepiece as the format is described, without the library."""

import struct
from pathlib import Path

from checkpoints import field, varint

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def write_pieces(path: Path, scores: dict[str, float], *, kind: int = 1, more: int = CONTROL) -> Path:
    """A Unigram model: `<unk>`, `<s>` and `</s>`, then the pieces with their scores."""
    special = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, more), ("</s>", 0.0, CONTROL)]
    message = b"".join(
        field(1, field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, number))
        for text, score, number in (*special, *((text, score, NORMAL) for text, score in scores.items()))
    )
    path.write_bytes(message + field(2, field(3, kind)) + field(3, field(1, b"identity")))
    return path
