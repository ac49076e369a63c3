"""What an attacker or a broken disk makes of a file: each mutation takes bytes that are right and gives others.

All are drawn from a seeded `random.Random`, so that a case can be made again from its number.
"""

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    7,
    255,
    256,
    65536,
    2**31 - 1,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    10**400,
)
ODD = (-(2**63), 0.5, 1.0, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"), True, False, None)
WORDS = (
    *(
        "",
        "xl",
        "recurrent",
        "seq2seq",
        "none",
        "bytes",
        "uint8",
        "uint16",
        "F32",
        "I64",
        "BOOL",
        "step",
        "0",
        "-1",
    ),
    *(
        "../../evil",
        "/etc/passwd",
        "a" * 5000,
        "\0",
        "\ud800",
        "\n",
        "é\u202e",
        "__class__",
        "self",
        "<unk>",
        "NaN",
    ),
)
DEEP = 200_000
"""Levels that no reader should follow."""


def hostile_value(draw: random.Random) -> Any:
    kind = draw.randrange(8)
    if kind < 3:
        return draw.choice(NUMBERS) * draw.choice((1, 1, 1, -1))
    if kind < 5:
        return draw.choice(ODD)
    if kind < 6:
        return draw.choice(WORDS)
    return draw.choice(
        ([], {}, [[]], {"": {}}, [1, 0], [0] * 300, [2**40, 1], nested(draw.choice((3, 60, 600))))
    )


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def mutated_bytes(draw: random.Random, text: bytes) -> bytes:
    """Flips, cuts, repeats and foreign bytes, anywhere."""
    changed = bytearray(text)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        place, size = draw.randrange(len(changed) + 1), draw.choice((1, 1, 4, 8, 100))
        match draw.randrange(7):
            case 0 if changed:
                changed[min(place, len(changed) - 1)] ^= 1 << draw.randrange(8)
            case 1:
                del changed[place:]
            case 2:
                del changed[place : place + size]
            case 3:
                changed[place:place] = draw.randbytes(size)
            case 4:
                changed[place : place + size] = draw.choice((b"\xff", b"\0", b"9", b"-", b"\n", b"[")) * size
            case 5:
                changed[place:place] = changed[place : place + size * draw.choice((1, 10))]
            case _:
                changed[place:place] = draw.choice(
                    (b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xff\xfe", b"\r", b"\x00")
                )
    return bytes(changed)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key."""
    stack = [value]
    while stack:
        held = stack.pop()
        keys = list(held) if isinstance(held, dict) else range(len(held)) if isinstance(held, list) else ()
        for key in keys:
            yield held, key
            stack.append(held[key])


def mutated_tree(draw: random.Random, text: bytes) -> bytes:
    """A JSON value with something changed in it, as a text that may say what JSON cannot."""
    value = json.loads(text)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = _changed(draw, value)
    return _written(draw, value)


def _changed(draw: random.Random, value: Any) -> Any:
    known = list(places_in(value))
    if not known or draw.random() < 0.02:
        return hostile_value(draw)
    held, key = draw.choice(known)
    match draw.randrange(8):
        case 0:
            del held[key]
        case 1 if isinstance(held, dict):
            held[draw.choice((*WORDS, str(key).upper(), f"{key}s"))] = held.pop(key)
        case 2 if isinstance(held, dict):
            held[draw.choice(WORDS)] = hostile_value(draw)
        case 3:
            other, name = draw.choice(known)
            held[key] = json.loads(json.dumps(other[name])) if name in _keys(other) else hostile_value(draw)
        case 4 if isinstance(held[key], int | float) and not isinstance(held[key], bool):
            held[key] += draw.choice((-1, 1, 8, 100)) if isinstance(held[key], int) else 0.5
        case 5 if isinstance(held[key], list) and held[key]:
            held[key] = draw.choice((held[key][::-1], held[key] * 2, held[key][:-1], held[key] * 50))
        case _:
            held[key] = hostile_value(draw)
    return value


def _keys(held: Any) -> Any:
    return held if isinstance(held, dict) else range(len(held))


def _written(draw: random.Random, value: Any) -> bytes:
    try:
        text = json.dumps(value).encode()
    except RecursionError:
        return b'[{"a":' * DEEP
    return draw.choice(WRITINGS)(draw, text) if draw.random() < 0.2 else text


def mutated_json(draw: random.Random, text: bytes) -> bytes:
    return mutated_bytes(draw, text) if draw.random() < 0.2 else mutated_tree(draw, text)


def mutated_lines(draw: random.Random, text: bytes) -> bytes:
    """Lines of JSON or of anything else."""
    lines = text.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    match draw.randrange(6):
        case 0:
            return mutated_bytes(draw, text)
        case 1:
            lines[place] = draw.choice(
                (b"\n", b"[]\n", b"null\n", b"7\n", b"\xff\xfe\n", b"\t\n", b"\t\t\n", b"\0\n")
            )
        case 2:
            lines[place] = b"[" * DEEP + b"\n"
        case 3:
            draw.shuffle(lines)
            lines.append(lines[place].rstrip(b"\n"))
        case _ if lines[place].startswith(b"{"):
            lines[place] = mutated_json(draw, lines[place]) + b"\n"
        case _:
            lines[place] = mutated_bytes(draw, lines[place])
    return b"".join(lines)


def mutated_toml(draw: random.Random, text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    match draw.randrange(7):
        case 0:
            return mutated_bytes(draw, text)
        case 1:
            lines[place] = draw.choice((b"", lines[draw.randrange(len(lines))], b"[model]\n", b"[[train]]\n"))
        case 2:
            lines.insert(place, b".".join([b"a"] * draw.choice((3, 5000))) + b" = 1\n")
        case _:
            name = lines[place].partition(b"=")[0].strip() or b"more"
            lines[place] = name + b" = " + toml_value(draw) + b"\n"
    return b"".join(lines)


def toml_value(draw: random.Random) -> bytes:
    """What may stand behind the sign of equality, or may not."""
    odd = (
        *(
            b"nan",
            b"inf",
            b"-inf",
            b"1e999",
            b"0x7fffffffffffffffff",
            b"0x" + b"f" * 6000,
            b"1" * 5000,
            b"1979-05-27",
            b"'''",
            b'"\\ud800"',
        ),
        *(
            b"[" * 5000,
            b"[" * 5000 + b"]" * 5000,
            b"{a=" * 3000,
            b"{}",
            b"[]",
            b"[[1]]",
            b"true",
            b"'xl'",
            b"''",
            b"",
        ),
    )
    if draw.random() < 0.4:
        return draw.choice(odd)
    return json.dumps(hostile_value(draw)).encode()


def mutated_tensors(draw: random.Random, text: bytes) -> bytes:
    """A safetensors file: what its header says, how long it says that it is, and what follows."""
    (size,) = struct.unpack("<Q", text[:8])
    header, data = text[8 : 8 + size], text[8 + size :]
    match draw.randrange(6):
        case 0:
            return mutated_bytes(draw, text)
        case 1:
            lie = draw.choice((0, 1, size - 1, size + 1, len(text), 2**27, 2**32, 2**63, 2**64 - 1))
            return struct.pack("<Q", lie) + header + data
        case 2:
            data = draw.choice((b"", data[:-1], data + b"\0", data * 2, data[: len(data) // 2]))
        case 3:
            header = _lying(draw, header)
        case _:
            header = mutated_json(draw, header)
    return struct.pack("<Q", len(header)) + header + data


def _lying(draw: random.Random, header: bytes) -> bytes:
    """A header that is in order but for one tensor: another kind, another shape, another place, another name."""
    values = json.loads(header)
    names = [name for name in values if name != "__metadata__"]
    name = draw.choice(names)
    match draw.randrange(5):
        case 0:
            kinds = (
                "F64",
                "F16",
                "BF16",
                "I64",
                "I32",
                "I8",
                "U8",
                "BOOL",
                "F8_E4M3",
                "F8_E5M2",
                "C64",
                "U64",
                "X",
            )
            values[name]["dtype"] = draw.choice(kinds)
        case 1:
            values[name]["shape"] = draw.choice(
                ([], [0], [2**62, 4], [-1], [1] * 100, [2**32, 2**32], values[name]["shape"][::-1], [10**20])
            )
        case 2:
            values[name]["data_offsets"] = values[draw.choice(names)]["data_offsets"]
        case 3:
            values[name]["data_offsets"] = draw.choice(
                ([0, 0], [4, 0], [-4, 4], [0, 2**63], [1, 2, 3], [0, 10**20])
            )
        case _:
            values[draw.choice((*WORDS, name + ".", "weights.x", "x" * 70_000))] = values.pop(name)
    for one in values.values() if draw.random() < 0.2 else ():  # all of another kind, in the same bytes
        if "dtype" in one:
            one["dtype"] = "I32"
    return json.dumps(values).encode()


def mutated_numbers(width: str) -> Mutation:
    """A file of unsigned numbers: some out of order, too large, too many, too few, or half a number."""
    size = struct.calcsize(width)

    def mutated(draw: random.Random, text: bytes) -> bytes:
        numbers = [number for (number,) in struct.iter_unpack(f"<{width}", text)]
        place = draw.randrange(len(numbers))
        match draw.randrange(7):
            case 0:
                return mutated_bytes(draw, text)
            case 1:
                numbers[place] = draw.choice(
                    (0, 1, 255, 256, 65_535, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
                ) % 2 ** (8 * size)
            case 2:
                numbers[place] = 0 if not place else numbers[place - 1]
            case 3:
                draw.shuffle(numbers)
            case 4:
                numbers = draw.choice(([], numbers[:1], numbers[:place], numbers * 2, [0] * len(numbers)))
            case 5:
                return text + bytes(draw.randrange(1, 2 * size))
            case _:
                numbers = [number + 1 for number in numbers if number + 1 < 2 ** (8 * size)]
        return b"".join(struct.pack(f"<{width}", number) for number in numbers)

    return mutated


WRITINGS: tuple[Mutation, ...] = (
    lambda _, text: text.replace(b": 1", b": 1e999", 1),
    lambda _, text: text.replace(b": 1", b": 1" + b"0" * 6000, 1),
    lambda _, text: text.replace(b"{", b'{"format": 1, "format": 2, ', 1),
    lambda draw, text: text.decode().encode(draw.choice(("utf-16", "utf-8-sig", "utf-32"))),
    lambda draw, text: text + draw.choice((b"}", b"\0", b"\n{}", b" " * 10_000)),
    lambda *_: b"[" * DEEP,
    lambda *_: b'{"a":' * DEEP,
    mutated_bytes,
)
"""Ways to write what is no JSON, or not quite."""
