"""What an attack counts: what was tried, what came of it, and what was lost, which should be nothing."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SHOWN = 20
"""Losses that are kept in full."""


@dataclass
class Tally:
    """The counts of one attack."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    parts: Counter[str] = field(default_factory=Counter)  # tries by what was attacked, where that is told
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        return sum(self.outcomes.values())

    @property
    def lost(self) -> int:
        return self.outcomes["lost"]

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def lose(self, what: str) -> None:
        self.outcomes["lost"] += 1
        self.losses = [*self.losses, what][:SHOWN]

    def add(self, other: "Tally") -> None:
        self.outcomes.update(other.outcomes)
        self.parts.update(other.parts)
        self.losses = [*self.losses, *other.losses][:SHOWN]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tried": self.tried,
            "lost": self.lost,
            "outcomes": dict(sorted(self.outcomes.items())),
            "losses": self.losses,
            "parts": dict(sorted(self.parts.items())),
            "seconds": round(self.seconds, 1),
        }
