"""Progress callbacks: how a long computation tells how far it is. Knows no terminal and no torch."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Called with the name of the task, the amount done, and the total amount (0: unknown)."""


def silent(task: str, done: int, total: int) -> None:
    """Report nothing."""
