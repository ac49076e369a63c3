"""Sorted string tables: the format of LevelDB, in which TensorFlow keeps the index of a checkpoint.

A table is blocks, then a footer that points to the index block, whose values point to the data blocks:

    block   entries, offsets of restarts (4 bytes each), their count (4) | kind (1) | masked CRC-32C (4)
    entry   varints: key bytes shared with the key before, further key bytes, value bytes; then those bytes
    footer  two handles (varints: offset and size) of the meta index and of the index, to 40 bytes; 8 bytes of magic
"""

from collections.abc import Iterator

from segue.errors import SourceError
from segue.interop.crc32c import masked_crc32c
from segue.interop.protobuf import varint

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES, TRAILER_BYTES = 48, 5


class DamagedError(SourceError):
    """A file that breaks the rules of its format."""


def table_items(content: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in the order of keys. Every block is verified."""
    if len(content) < FOOTER_BYTES or int.from_bytes(content[-8:], "little") != MAGIC:
        raise DamagedError(
            f"{name} is no index of a TensorFlow checkpoint, or its end is missing; copy it again"
        )
    footer = content[-FOOTER_BYTES:-8]
    try:
        _, at = _handle(footer, 0)
        (offset, size), _ = _handle(footer, at)
        for _, value in _entries(_block(content, offset, size, name)):
            (offset, size), _ = _handle(value, 0)
            yield from _entries(_block(content, offset, size, name))
    except (IndexError, ValueError) as error:
        raise DamagedError(f"{name} is damaged: {error}; copy it again") from None


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = varint(content, at)
    size, at = varint(content, at)
    return (offset, size), at


def _block(content: bytes, offset: int, size: int, name: str) -> bytes:
    end = offset + size
    if end + TRAILER_BYTES > len(content) - FOOTER_BYTES:
        raise ValueError("a block lies beyond its end")
    kind, stored = content[end], int.from_bytes(content[end + 1 : end + TRAILER_BYTES], "little")
    if masked_crc32c(content[offset : end + 1]) != stored:
        raise DamagedError(
            f"{name} is damaged: the checksum of its block at {offset} does not match; copy it again"
        )
    if kind != 0:
        raise DamagedError(
            f"{name} has compressed blocks (kind {kind}), which no release of TensorFlow 1 wrote"
        )
    return content[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise ValueError("a block is shorter than its own end")
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        further, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + further + length > end:
            raise ValueError("an entry lies beyond its block")
        key = key[:shared] + block[at : at + further]
        at += further
        yield key, block[at : at + length]
        at += length
