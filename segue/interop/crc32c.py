"""CRC-32C (Castagnoli), the checksum of TensorFlow's checkpoints, by numpy at some hundred megabytes a second.

A checksum is linear over single bits: zeros behind a word act on it as a matrix of 32 x 32 bits. So a row of words is
carried past the whole next row at once (`_carried`) and added to it; what is left in the end is one row, then one word.
"""

from functools import cache
from typing import Any

import numpy as np

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, with its bits reversed."""

ROW_WORDS = 2**13
"""Words of a row: few enough to stay in a CPU's cache, many enough for numpy."""

Words = np.ndarray[Any, np.dtype[np.uint32]]


def crc32c(data: bytes | memoryview) -> int:
    """The checksum of some bytes."""
    if len(data) < 4:
        return _of_few(bytes(data))
    row_bytes = 4 * ROW_WORDS
    first = min(len(data), len(data) % row_bytes + row_bytes)
    front = np.zeros(2 * row_bytes, dtype=np.uint8)  # zeros before a message do not change its checksum
    front[-first:] = np.frombuffer(data[:first], dtype=np.uint8)
    front[-first:][:4] ^= 0xFF  # the checksum begins with all bits set
    words: Words = np.zeros(ROW_WORDS, dtype=np.uint32)
    for rows in (front, np.frombuffer(data[first:], dtype=np.uint8)):
        for row in rows.view("<u4").reshape(-1, ROW_WORDS):
            words = _carried(words, ROW_WORDS)
            words ^= row
    while len(words) > 1:
        half = len(words) // 2
        words = _carried(words[:half], half) ^ words[half:]
    return int(_carried(words, 1)[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum as it is stored: turned and shifted, because checksums of data that hold checksums are weak."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _of_few(data: bytes) -> int:
    """Bit by bit, as the textbook has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _carried(words: Words, count: int) -> Words:
    """The words after `count` words of zeros, a power of two."""
    low, high = _tables(count)
    carried: Words = low[words & 0xFFFF]
    carried ^= high[words >> 16]
    return carried


@cache
def _tables(count: int) -> tuple[Words, Words]:
    """(65536,) twice: the images of all lower and of all upper halves of a word."""
    columns = _columns(count)
    halves = []
    for half in (columns[:16], columns[16:]):
        table = np.zeros(2**16, dtype=np.uint32)
        for bit, column in enumerate(half):
            table[2**bit : 2 ** (bit + 1)] = table[: 2**bit] ^ column
        halves.append(table)
    return halves[0], halves[1]


def _columns(count: int) -> Words:
    """(32,) The image of each bit of a word after `count` words of zeros."""
    if count > 1:
        half = _columns(count // 2)
        return _carried(half, count // 2)
    columns = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
    for _ in range(32):
        columns = (columns >> 1) ^ np.where(columns & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return columns
