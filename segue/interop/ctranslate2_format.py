"""CTranslate2's `model.bin`: named tensors in one file.

    version, name and revision of the specification, number of variables; for each: its name, its rank and dimensions,
    its type and its bytes; number of aliases; for each: its name and the variable's

Numbers are little-endian; a text is its length (2 bytes, a zero byte counted), its bytes and a zero byte.
"""

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from segue.errors import SourceError

VERSIONS, VERSION = (4, 5, 6), 6
SPECIFICATION, REVISION = "TransformerSpec", 7
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""Their place is the number that stands for them."""


def read_variables(path: Path) -> dict[str, Tensor]:
    """The variables of a Transformer, those of aliases included; a table and its alias are one tensor."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror}") from None
    try:
        return _variables(_Reader(bytearray(content)), path)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise SourceError(f"{path} is no model of CTranslate2, or its end is missing: {error}") from None


class _Reader:
    """Takes values one after another."""

    def __init__(self, content: bytearray) -> None:
        self.content, self.at = memoryview(content), 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(f"<{layout}", self.content, self.at)
        self.at += struct.calcsize(layout)
        return int(value)

    def take(self, count: int) -> memoryview:
        if self.at + count > len(self.content):
            raise ValueError("it ends early")
        self.at += count
        return self.content[self.at - count : self.at]

    def text(self) -> str:
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode()


def _variables(reader: _Reader, path: Path) -> dict[str, Tensor]:
    version = reader.number("I")
    if version not in VERSIONS:
        raise SourceError(
            f"{path} has format {version}; known are {VERSIONS[0]} to {VERSIONS[-1]}: convert it again"
        )
    specification = reader.text()
    if specification != SPECIFICATION:
        raise SourceError(f"{path} is a {specification[:40]!r}; only {SPECIFICATION} is supported")
    reader.number("I")
    variables: dict[str, Tensor] = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        kind, size = reader.number("B"), reader.number("I")
        if kind >= len(TYPES) or prod(shape) * TYPES[kind].itemsize != size:
            raise ValueError(f"{name[:80]} has {size} bytes, which do not fit its shape and type")
        content = reader.take(size)
        variables[name] = (
            torch.frombuffer(content, dtype=TYPES[kind]).view(shape) if size else torch.empty(shape)
        )
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in variables:
            raise ValueError(f"{alias[:80]} stands for {name[:80]}, which it does not hold")
        variables[alias] = variables[name]
    return variables


def write_variables(path: Path, variables: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
    """Write variables in the newest format."""
    with path.open("wb") as file:
        file.write(struct.pack("<I", VERSION) + _text(SPECIFICATION))
        file.write(struct.pack("<II", REVISION, len(variables)))
        for name, tensor in sorted(variables.items()):
            shape, size = tensor.shape, tensor.numel() * tensor.element_size()
            file.write(_text(name) + struct.pack(f"<B{len(shape)}I", len(shape), *shape))
            file.write(struct.pack("<BI", TYPES.index(tensor.dtype), size))
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        file.write(struct.pack("<I", len(aliases)))
        for alias, name in sorted(aliases.items()):
            file.write(_text(alias) + _text(name))


def _text(text: str) -> bytes:
    content = text.encode() + b"\0"
    return struct.pack("<H", len(content)) + content


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8, and the scale of each row: int8 is the number times its scale, rounded."""
    most = weight.abs().amax(dim=1)
    scale = 127 / torch.where(most == 0, 127.0, most)
    return (weight * scale[:, None]).round().to(torch.int8), scale
