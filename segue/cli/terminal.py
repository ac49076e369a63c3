"""The one place where commands print. Text from outside must not steer a terminal: what cannot be seen is escaped.

Standard output is escaped on a terminal alone, so that pipes and files get the text as it is; standard error always.
"""

import sys
import unicodedata

JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Hindi and emoji are spelled with them."""

WIPED = "\r\x1b[2K"
"""Wipes the terminal's line."""


def printable(text: str, keep: str = "\n\t") -> str:
    r"""The text with visible escapes such as `\x1b` in place of what steers a terminal, hides or turns text round.

    That is: control characters but those to keep, format characters (bidirectional overrides among them), line and
    paragraph separators, halves of characters. One character at a time, so that a text may come in pieces.
    """
    return text if text.isprintable() else "".join(_seen(character, keep) for character in text)


def _seen(character: str, keep: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    if not hidden or character in keep or character in JOINERS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def echo(text: str, end: str = "\n") -> None:
    """To standard output: what a command was asked for."""
    if sys.stdout.isatty():
        text = printable(text)
    encoding = sys.stdout.encoding or "utf-8"
    # a name of a file may hold what no encoding has
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + end)
    sys.stdout.flush()


def tell(text: str) -> None:
    """To standard error, always one line: notes, warnings, errors."""
    sys.stderr.write(printable(text, keep="\t") + "\n")
    sys.stderr.flush()


def draw(line: str) -> None:
    """To standard error, in place of the line before if it is a terminal: progress."""
    seen = printable(line, keep="")
    sys.stderr.write(f"{WIPED}{seen}" if sys.stderr.isatty() else f"{seen}\n")
    sys.stderr.flush()


def wipe() -> None:
    """Remove what was drawn."""
    if sys.stderr.isatty():
        sys.stderr.write(WIPED)
        sys.stderr.flush()
