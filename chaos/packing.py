"""Compressed files as an attacker makes them: damaged, lying, greedy, bombs."""

import bz2
import gzip
import io
import lzma
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache

from mutations import Mutation, mutated_bytes

BOMB = 96 * 2**20
"""Bytes that a bomb unpacks to."""

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda text: gzip.compress(text, 1),
    ".xz": lambda text: lzma.compress(text, preset=0),
    ".bz2": lambda text: bz2.compress(text, 1),
    ".zip": lambda text: zipped({"text.txt": text}),
}


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


@cache
def bomb(suffix: str, byte: bytes) -> bytes:
    return PACKERS[suffix](byte * BOMB)


def packed(suffix: str, inside: Mutation) -> Mutation:
    """A compressed file: damaged, lying, a bomb, or in order with something hostile inside."""

    def mutated(draw: random.Random, text: bytes) -> bytes:
        chance = draw.random()
        if chance < 0.0005:
            return bomb(suffix, draw.choice((b"\0", b"a", b"\n", b"[")))
        if chance < 0.4:
            return PACKERS[suffix](inside(draw, text))
        if chance < 0.5 and suffix == ".zip":
            return _strange_zip(draw, text)
        if chance < 0.55 and suffix == ".xz":
            return _greedy_xz(draw, text)
        whole = PACKERS[suffix](text)
        return draw.choice((whole + whole, whole + b"junk")) if chance < 0.6 else mutated_bytes(draw, whole)

    return mutated


def _strange_zip(draw: random.Random, text: bytes) -> bytes:
    """Names that lead elsewhere, many members or none, other methods, encryption, sizes that lie."""
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED)
    names = ("../../evil", "../evil", "/tmp/evil", "a/../../evil", "C:\\evil", "folder/", "x" * 60_000)  # noqa: S108
    whole = zipped({draw.choice(names): text}, draw.choice(methods))
    match draw.randrange(4):
        case 0:
            return zipped({f"{number}.txt": b"" for number in range(draw.choice((0, 2, 500)))})
        case 1:
            return whole
    changed, entry = bytearray(whole), whole.rfind(b"PK\x01\x02")
    places = {8: 2, 10: 2, 20: 4, 24: 4, 28: 2, 42: 4}  # flags, method, sizes, the name's length, the offset
    place = draw.choice(list(places))
    changed[entry + place : entry + place + places[place]] = draw.randbytes(places[place])
    return bytes(changed)


def _greedy_xz(draw: random.Random, text: bytes) -> bytes:
    """A dictionary of gigabytes, to be held in memory whatever the text."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
    whole = bytearray(lzma.compress(text, check=lzma.CHECK_NONE, filters=filters))
    size = draw.choice((30, 36, 38, 39, 40))  # 128 MB, 1 GB, 2, 3 and 4 GB
    header = bytes([2, 0, 0x21, 1, size, 0, 0, 0])
    at = whole.index(b"\x02\x00\x21\x01")
    whole[at : at + 12] = header + struct.pack("<I", zlib.crc32(header))
    return bytes(whole)
