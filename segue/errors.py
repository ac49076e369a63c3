"""What can go wrong by the user's hand. (Our own mistakes are assertions.)

Every message says what was found, what was wanted and what to try, in one line.
None of these is a ValueError: pydantic would swallow it into a report of its own.
"""

LONGEST = 1000
"""Characters of a message; of a longer one, the middle is left out."""


class SegueError(Exception):
    """Anything a user can put right."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())  # what is quoted from a file may have several
        half = LONGEST // 2
        super().__init__(line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}")


class ConfigError(SegueError):
    """A setting that does not exist, does not fit or contradicts another."""


class InputError(SegueError):
    """Tokens, memories or masks that the model cannot read."""


class BundleError(SegueError):
    """A bundle on disk that is damaged, incomplete or of another shape."""


class SourceError(SegueError):
    """A foreign checkpoint that cannot be imported, or a model that a foreign layout cannot hold."""


class TrainingError(SegueError):
    """A run that cannot begin, go on or be resumed."""


class OtherRankError(SegueError):
    """What went wrong on all ranks at once, or on another one: the first of them says it, this one keeps quiet."""
