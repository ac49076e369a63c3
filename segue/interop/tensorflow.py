"""TensorFlow's checkpoints (`NAME.index` and `NAME.data-00000-of-00001` …), read without TensorFlow.

The index is a sorted table: under the empty key the number of shards, under every variable's name its type, its shape,
and the shard, offset, size and checksum of its numbers. Both are small protocol buffers.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from segue.errors import SourceError
from segue.interop.crc32c import masked_crc32c
from segue.interop.protobuf import fields
from segue.interop.sorted_table import table_items

TYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}
"""Types of numbers, by the number that stands for each."""

OPTIMIZER = re.compile(r"(^|/)(global_step|beta[12]_power|Adam(_\d+)?|Momentum|RMSProp(_\d+)?|Adagrad)$")
"""Names of what belongs to training: counters, and the slots behind a weight's name."""

MAX_INDEX_BYTES = 2**26


@dataclass(frozen=True)
class Variable:
    """Where the numbers of a variable are."""

    name: str
    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def is_checkpoint(source: Path) -> bool:
    """Whether there is an index at this path, or in this folder."""
    return source.suffix == ".index" or (source.is_dir() and any(source.glob("*.index")))


def read_checkpoint(source: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint under their names, verified; what belongs to an optimizer is not read."""
    index = _index(source)
    try:
        if index.stat().st_size > MAX_INDEX_BYTES:
            raise SourceError(f"{index} has {index.stat().st_size:,} bytes, too many for an index")
        items = list(table_items(index.read_bytes(), str(index)))
    except OSError as error:
        raise SourceError(f"{index} could not be read: {error.strerror}") from None
    if not items or items[0][0] != b"":
        raise SourceError(f"{index} has no header; is it the index of a checkpoint?")
    shards = _shards(items[0][1], index)
    variables = [_variable(name.decode(errors="replace"), value, index) for name, value in items[1:]]
    return {one.name: _tensor(one, shards) for one in variables if not OPTIMIZER.search(one.name)}


def _index(source: Path) -> Path:
    """The index at this path; of several in a folder, the one that its file `checkpoint` names."""
    if not source.is_dir():
        return source
    indexes = sorted(source.glob("*.index"))
    if len(indexes) == 1:
        return indexes[0]
    newest = source / "checkpoint"
    text = newest.read_text(errors="replace") if newest.is_file() else ""
    named = re.search(r'^model_checkpoint_path: *"(?:[^"]*/)?([^"/]+)"', text, flags=re.MULTILINE)
    if named and source / f"{named[1]}.index" in indexes:
        return source / f"{named[1]}.index"
    several = ", ".join(index.name for index in indexes[:3])
    raise SourceError(f"{source} has several checkpoints ({several} …); name the .index file of one")


def _shards(header: bytes, index: Path) -> list[Path]:
    facts = dict(_fields(header, index))
    count, big_endian = facts.get(1, 0), facts.get(2, 0)
    if big_endian:
        raise SourceError(f"{index} was written on a big-endian machine; only little-endian ones are read")
    if not isinstance(count, int) or not 0 < count < 10**5:
        raise SourceError(f"{index} has no sensible number of shards; is it damaged?")
    stem = index.with_suffix("").name
    shards = [index.with_name(f"{stem}.data-{number:05}-of-{count:05}") for number in range(count)]
    for shard in shards:
        if not shard.is_file():
            raise SourceError(f"{index} has its numbers in {shard.name}, which is missing beside it")
    return shards


def _variable(name: str, entry: bytes, index: Path) -> Variable:
    numbers = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}  # type, shard, offset, size, checksum
    shape: list[int] = []
    for field, value in _fields(entry, index):
        if field == 2 and isinstance(value, bytes):
            for part, dimension in _fields(value, index):
                if part == 2 and isinstance(dimension, bytes):
                    shape.append(_whole(dict(_fields(dimension, index)).get(1, 0), name, index))
        elif field == 7:
            raise SourceError(
                f"{index}: {name} is stored in slices; save it whole, or average the checkpoint"
            )
        elif field in numbers:
            numbers[field] = _whole(value, name, index)
    return Variable(name, numbers[1], tuple(shape), numbers[3], numbers[4], numbers[5], numbers[6])


def _whole(value: int | bytes, name: str, index: Path) -> int:
    if not isinstance(value, int) or value >= 2**63:
        raise SourceError(f"{index} is damaged at {name}; copy it again")
    return value


def _fields(message: bytes, index: Path) -> list[tuple[int, int | bytes]]:
    try:
        return list(fields(message))
    except (IndexError, ValueError) as error:
        raise SourceError(f"{index} is damaged: {error}; copy it again") from None


def _tensor(one: Variable, shards: list[Path]) -> Tensor:
    if one.kind not in TYPES:
        raise SourceError(f"{one.name} has numbers of type {one.kind}; only real and whole ones are read")
    if one.shard >= len(shards):
        raise SourceError(f"{one.name} is in shard {one.shard}, and there are {len(shards)}")
    shard, kind = shards[one.shard], TYPES[one.kind]
    if prod(one.shape) * kind.itemsize != one.size:
        raise SourceError(f"{one.name} has shape {one.shape} and {one.size} bytes; the index is damaged")
    if one.offset + one.size > shard.stat().st_size:
        raise SourceError(
            f"{shard} is cut off: {one.name} ends at byte {one.offset + one.size:,}, "
            f"the file at {shard.stat().st_size:,}; copy it again"
        )
    with shard.open("rb") as file:
        file.seek(one.offset)
        content = bytearray(file.read(one.size))
    if masked_crc32c(memoryview(content)) != one.checksum:
        raise SourceError(f"{shard} is damaged: the checksum of {one.name} does not match; copy it again")
    return torch.frombuffer(content, dtype=kind).view(one.shape) if content else torch.empty(one.shape)
