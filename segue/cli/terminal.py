"""The one place where commands print. Control characters are escaped, so that text cannot control the terminal.

Standard output is escaped only on a terminal, so that pipes and files get the exact text; standard error always.
"""

import sys
import unicodedata

from segue.errors import InputError

JOINERS = "\u200c\u200d"
"""Invisible characters that are kept: Persian, Hindi and emoji need them."""

WIPED = "\r\x1b[2K"
"""Clears the current line of the terminal."""


def printable(text: str, keep: str = "\n\t") -> str:
    r"""The text with escapes such as `\x1b` for characters that control a terminal, or hide or reverse text.

    These are: control characters except those in `keep`, format characters (also bidirectional overrides), line and
    paragraph separators, surrogates. Each character is escaped by itself, so that a text may come in pieces.
    """
    return text if text.isprintable() else "".join(_escaped(character, keep) for character in text)


def _escaped(character: str, keep: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    if not hidden or character in keep or character in JOINERS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def echo(text: str, end: str = "\n") -> None:
    """Print the result of a command to standard output."""
    if sys.stdout is None:  # closed by whoever started the process
        raise InputError("standard output is closed")
    if sys.stdout.isatty():
        text = printable(text)
    encoding = sys.stdout.encoding or "utf-8"
    # a file name may contain what the encoding cannot express
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + end)
    sys.stdout.flush()


def write_bytes(content: bytes) -> None:
    """Write a binary result to standard output, which should be a file or a pipe."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def tell(text: str) -> None:
    """Print a note, warning or error to standard error, always on one line."""
    sys.stderr.write(printable(text, keep="\t") + "\n")
    sys.stderr.flush()


def draw(line: str) -> None:
    """Print a progress line to standard error; on a terminal it replaces the previous one."""
    shown = printable(line, keep="")
    sys.stderr.write(f"{WIPED}{shown}" if sys.stderr.isatty() else f"{shown}\n")
    sys.stderr.flush()


def wipe() -> None:
    """Remove the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write(WIPED)
        sys.stderr.flush()
