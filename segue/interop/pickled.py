"""Reads the few pickles that published vocabularies come in, and executes nothing.

A pickle is a program for a small stack machine. This one knows the instructions that build dicts, lists, tuples, text
and numbers, and the names of the classes that the vocabularies of Transformer-XL are made of. Objects of these classes
become plain dicts of their attributes, arrays become nothing at all. Any other instruction or name is refused.

Memory is bounded: long strings (arrays of tokens) are skipped where they stand in the file, and values are counted.
"""

import codecs
import mmap
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segue.errors import SourceError

MAX_VALUES = 2**24
"""Values that a pickle may build, many times those of the largest published vocabulary."""
MAX_TEXT = 2**16
"""Bytes of a text; longer ones are data, and are skipped."""
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""What a file of torch.save before version 1.6 begins with: then a version, facts about the system, the value."""

MAPPINGS = {("collections", "OrderedDict"), ("collections", "Counter")}
OBJECTS = {
    ("vocabulary", "Vocab"),
    ("utils.vocabulary", "Vocab"),
    ("data_utils", "Corpus"),
    ("__main__", "Corpus"),
}
RECONSTRUCTORS = {("copy_reg", "_reconstructor"), ("copyreg", "_reconstructor")}
DATA = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("__builtin__", "object"),
    ("builtins", "object"),
}
"""Names of what is left out: arrays, and how their bytes are written."""


BROKEN = (IndexError, ValueError, TypeError, OverflowError, struct.error)
"""What a program that breaks the rules of pickles raises here."""


class Name(tuple[str, str]):
    """The module and the name of a class or function, which is never looked up."""

    __slots__ = ()


class Nothing:
    """What stands for data that is left out."""


MARK, NOTHING = object(), Nothing()


def read_pickle(path: Path) -> Any:
    """The value in a pickle, in a file of torch.save, or in one of its zip archives."""
    try:
        if zipfile.is_zipfile(path):
            return _Machine(_archived(path), path).run()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            machine = _Machine(content, path)
            value = machine.run()
            if value == TORCH_MAGIC:
                machine.run()
                machine.run()
                value = machine.run()
            return value
    except (OSError, zipfile.BadZipFile) as error:
        raise SourceError(f"{path} could not be read: {getattr(error, 'strerror', None) or error}") from None
    except BROKEN as error:
        raise SourceError(
            f"{path} is no readable pickle of a vocabulary: {error or 'it ends early'}"
        ) from None


def _archived(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1 or archive.getinfo(names[0]).file_size > 2**28:
            raise SourceError(f"{path} is a zip archive without a value of torch.save")
        return archive.read(names[0])


class _Machine:
    """The stack machine. It has no instruction that calls anything."""

    def __init__(self, content: bytes | mmap.mmap, path: Path) -> None:
        self.content, self.path, self.at = content, path, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.values = 0

    def run(self) -> Any:
        """The value of the pickle that begins here; the next one may follow it."""
        self.stack, self.memo = [], {}
        while True:
            place, code = self.at, self.take(1)
            if code == b".":
                return self.stack.pop()
            if code in VALUES:
                self.push(VALUES[code](self))
            elif code in STEPS:
                STEPS[code](self)
            else:
                raise SourceError(
                    f"{self.path}: the instruction {code!r} at byte {place} is none that a vocabulary needs; "
                    "nothing was executed"
                )

    def push(self, value: Any) -> None:
        self.count(1)
        self.stack.append(value)

    def count(self, values: int) -> None:
        """Count values, those that are copied too: a small pickle could copy a large dict for ever."""
        self.values += values
        if self.values > MAX_VALUES:
            raise SourceError(f"{self.path} builds more than {MAX_VALUES:,} values; is it a vocabulary?")

    def take(self, count: int) -> bytes:
        part = self.content[self.at : self.at + count]
        if len(part) < count:
            raise ValueError("it ends early")
        self.at += count
        return part

    def number(self, layout: str) -> Any:
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(layout)))[0]

    def line(self) -> bytes:
        end = self.content.find(b"\n", self.at, self.at + MAX_TEXT)
        if end < 0:
            raise ValueError("a line has no end")
        return self.take(end + 1 - self.at)[:-1]

    def line_text(self, decode: Callable[[bytes], str]) -> Any:
        """A string to the end of its line; a long one is skipped."""
        end = self.content.find(b"\n", self.at)
        if end - self.at > MAX_TEXT:
            self.at = end + 1
            return NOTHING
        return decode(self.line())

    def text(self, layout: str, decode: Callable[[bytes], Any]) -> Any:
        """A string behind its length; a long one is skipped."""
        length = self.number(layout)
        if not 0 <= length <= len(self.content) - self.at:
            raise ValueError("it ends early")
        if length > MAX_TEXT:
            self.at += length
            return NOTHING
        return decode(self.take(length))

    def marked(self) -> list[Any]:
        """What lies above the newest mark."""
        above: list[Any] = []
        while (value := self.stack.pop()) is not MARK:
            above.append(value)
        return above[::-1]

    def below_marked(self) -> tuple[Any, list[Any]]:
        """What lies below the newest mark, and what lies above it."""
        above = self.marked()
        return self.stack[-1], above

    def name(self, module: Any, name: Any) -> Name:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("a name is no text")
        named = Name((module, name))
        if named not in MAPPINGS | OBJECTS | RECONSTRUCTORS | DATA:
            wanted = f"{module}.{name}"[:80]
            raise SourceError(
                f"{self.path} asks for {wanted!r}, which no vocabulary needs; nothing was executed"
            )
        return named

    def remember(self, place: int) -> None:
        if not 0 <= place < 2**32:
            raise ValueError("a place in its memo is no such place")
        self.count(1)
        self.memo[place] = self.stack[-1]

    def recall(self, place: int) -> Any:
        if place not in self.memo:
            raise ValueError("it recalls what it never stored")
        return self.memo[place]


def _constructed(machine: _Machine) -> Any:
    """What stands for the call of a class: a dict for mappings and objects, nothing for data."""
    arguments, called = machine.stack.pop(), machine.stack.pop()
    if isinstance(called, Name) and called in RECONSTRUCTORS and isinstance(arguments, tuple):
        called, arguments = arguments[0], ()
    if not isinstance(called, Name) or not isinstance(arguments, tuple):
        raise ValueError("it calls what is no class")
    if called not in MAPPINGS:
        return {} if called in OBJECTS else NOTHING
    pairs = arguments[0] if arguments else {}
    if isinstance(pairs, dict):
        return pairs
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise ValueError("a dict is made of what are no pairs")
    machine.count(len(pairs))
    return _filled({}, [part for pair in pairs for part in pair])


def _filled(mapping: Any, pairs: list[Any]) -> Any:
    """A dict with keys and values added. Keys are texts and numbers: hashing a deep tuple would exhaust the stack."""
    if mapping is NOTHING:
        return mapping
    for key in pairs[::2]:
        if not isinstance(key, str | bytes | int | float | None):
            raise ValueError("a key is neither text nor number")
    if not isinstance(mapping, dict):
        raise ValueError("it fills what is no dict")
    mapping.update(zip(pairs[::2], pairs[1::2], strict=True))
    return mapping


def _extended(machine: _Machine, values: list[Any]) -> None:
    if not isinstance(machine.stack[-1], list):
        raise ValueError("it extends what is no list")
    machine.stack[-1].extend(values)


def _built(machine: _Machine) -> None:
    """Attributes given to an object."""
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(state, dict) and isinstance(target, dict):
        machine.count(len(state))
        target.update(state)
    elif target is not NOTHING:
        raise ValueError("the state of an object is no dict")


def _python2(content: bytes) -> str:
    """Text of Python 2, which was bytes."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _quoted(content: bytes) -> str:
    if len(content) < 2 or content[:1] not in b"'\"" or content[:1] != content[-1:]:
        raise ValueError("a string has no quotes")
    return _python2(codecs.escape_decode(content[1:-1])[0])


def _whole(content: bytes) -> int | bool:
    if content in (b"00", b"01"):
        return content == b"01"
    return int(content[:100].rstrip(b"L"))


def _global(machine: _Machine) -> Name:
    module = machine.line().decode()
    return machine.name(module, machine.line().decode())


def _stack_global(machine: _Machine) -> Name:
    name, module = machine.stack.pop(), machine.stack.pop()
    return machine.name(module, name)


VALUES: dict[bytes, Callable[[_Machine], Any]] = {
    b"(": lambda _: MARK,
    b"N": lambda _: None,
    b"\x88": lambda _: True,
    b"\x89": lambda _: False,
    b"I": lambda m: _whole(m.line()),
    b"L": lambda m: _whole(m.line()),
    b"F": lambda m: float(m.line()[:100]),
    b"J": lambda m: m.number("i"),
    b"K": lambda m: m.number("B"),
    b"M": lambda m: m.number("H"),
    b"\x8a": lambda m: int.from_bytes(m.take(m.number("B")), "little", signed=True),
    b"G": lambda m: struct.unpack(">d", m.take(8))[0],
    b"V": lambda m: m.line_text(lambda content: content.decode("raw-unicode-escape")),
    b"X": lambda m: m.text("I", lambda content: content.decode("utf-8", "surrogatepass")),
    b"\x8c": lambda m: m.text("B", lambda content: content.decode("utf-8", "surrogatepass")),
    b"\x8d": lambda m: m.text("Q", lambda content: content.decode("utf-8", "surrogatepass")),
    b"S": lambda m: m.line_text(_quoted),
    b"T": lambda m: m.text("i", _python2),
    b"U": lambda m: m.text("B", _python2),
    b"B": lambda m: m.text("I", bytes),
    b"C": lambda m: m.text("B", bytes),
    b"\x8e": lambda m: m.text("Q", bytes),
    b"}": lambda _: {},
    b"]": lambda _: [],
    b")": lambda _: (),
    b"d": lambda m: _filled({}, m.marked()),
    b"l": lambda m: m.marked(),
    b"t": lambda m: tuple(m.marked()),
    b"\x85": lambda m: (m.stack.pop(),),
    b"\x86": lambda m: (m.stack.pop(-2), m.stack.pop()),
    b"\x87": lambda m: (m.stack.pop(-3), m.stack.pop(-2), m.stack.pop()),
    b"g": lambda m: m.recall(int(m.line()[:20])),
    b"h": lambda m: m.recall(m.number("B")),
    b"j": lambda m: m.recall(m.number("I")),
    b"c": _global,
    b"\x93": _stack_global,
    b"R": _constructed,
    b"\x81": _constructed,
}
"""Instructions that put a value on the stack."""

STEPS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # the protocol
    b"\x95": lambda m: m.take(8),  # the length of a frame
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"p": lambda m: m.remember(int(m.line()[:20])),
    b"q": lambda m: m.remember(m.number("B")),
    b"r": lambda m: m.remember(m.number("I")),
    b"a": lambda m: _extended(m, [m.stack.pop()]),
    b"e": lambda m: _extended(m, m.marked()),
    b"s": lambda m: _filled(m.stack[-3], [m.stack.pop(-2), m.stack.pop()]),
    b"u": lambda m: _filled(*m.below_marked()),
    b"b": _built,
    b"0": lambda m: m.stack.pop(),
}
"""Instructions that change what is there."""
