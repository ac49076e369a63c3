"""Protocol buffers as they are on disk: numbered fields. TensorFlow's indexes and sentencepiece's models are such."""

from collections.abc import Iterator


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first; and where the next value begins."""
    number = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number has more than 64 bits")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and value of each field: varints and fixed numbers as numbers, the rest as bytes.

    What breaks the format raises IndexError or ValueError.
    """
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        match tag & 7:
            case 0:
                number, at = varint(message, at)
                yield tag >> 3, number
                continue
            case 1 | 5:
                size = 8 if tag & 7 == 1 else 4
            case 2:
                size, at = varint(message, at)
            case kind:
                raise ValueError(f"a field of kind {kind}")
        if at + size > len(message):
            raise ValueError("a field ends beyond its message")
        content, at = message[at : at + size], at + size
        yield tag >> 3, content if tag & 7 == 2 else int.from_bytes(content, "little")
