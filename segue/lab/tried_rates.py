"""A note on tuning, for the page: how many sides took the highest learning rate that they tried.

A better one may lie beyond it, and not at the same place for every side; and what is best in a short trial need not be
best in the end.
"""

from collections.abc import Iterator
from typing import Any

from segue.lab.experiment import Results


def edge_note(results: Results) -> str:
    """The sentence on an experiment's tuned sides; empty if no side took the highest rate."""
    sides = list(_sides(results))
    edge = [rate for rate, highest in sides if rate == highest]
    if not edge:
        return ""
    rates = ", ".join(f"{rate:g}" for rate in sorted(set(edge)))
    return (
        f"Tuning: {len(edge)} of {len(sides)} sides took the highest learning rate that they tried ({rates}). "
        "A higher one might serve them better, some more than others; or a lower one, since short trials favour high "
        "rates."
    )


def _sides(results: Any) -> Iterator[tuple[float, float]]:
    """The learning rate of each tuned side, and the highest that it tried with that optimizer."""
    if isinstance(results, list):
        for one in results:
            yield from _sides(one)
    elif isinstance(results, dict):
        if results.get("tries"):
            chosen = results.get("chosen", results)
            yield chosen["learning_rate"], max(_rates(results["tries"], chosen.get("optimizer")))
        for key, one in results.items():
            if key not in ("tries", "chosen"):
                yield from _sides(one)


def _rates(tries: Any, optimizer: str | None) -> list[float]:
    """The learning rates that were tried: keys with a loss each, or settings."""
    if isinstance(tries, dict):
        return [float(rate) for rate in tries]
    return [one["learning_rate"] for one in tries if one.get("optimizer") == optimizer]
