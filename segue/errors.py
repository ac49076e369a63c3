"""Errors that the user can correct. (Mistakes in our own code are assertions.)

Every message says what was found, what was expected and what to try, in one line.
None of these is a ValueError: pydantic would catch it and put it into a report of its own.
"""

MAX_CHARACTERS = 1000
"""The length of a message; the middle of a longer one is left out."""


class SegueError(Exception):
    """Any error that the user can correct."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())  # text quoted from a file may have several lines
        half = MAX_CHARACTERS // 2
        super().__init__(line if len(line) <= MAX_CHARACTERS else f"{line[:half]} … {line[-half:]}")


class ConfigError(SegueError):
    """A setting that does not exist, has a wrong value or contradicts another."""


class InputError(SegueError):
    """Tokens, memories or masks that the model cannot read."""


class BundleError(SegueError):
    """A bundle on disk that is damaged, incomplete or of another shape."""


class SourceError(SegueError):
    """A foreign checkpoint that cannot be imported, or a model that a foreign layout cannot hold."""


class TrainingError(SegueError):
    """A run that cannot start, continue or be resumed."""


class OtherRankError(SegueError):
    """An error that another rank reports: one on all ranks at once, or one on that rank. This rank prints nothing."""
