"""The page of figures says what was recorded."""

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ATTACKS = json.loads((DOCS / "results" / "chaos.json").read_text(encoding="utf-8"))["attacks"]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_told_with_its_counts(name: str) -> None:
    row = ATTACKS[name]
    assert row["tried"] == sum(row["outcomes"].values())
    assert f"| {name} | {row['tried']:,} | {row['lost']} |" in (DOCS / "chaos.md").read_text(encoding="utf-8")


def test_the_sums_are_right() -> None:
    tried, lost = (sum(row[what] for row in ATTACKS.values()) for what in ("tried", "lost"))
    assert f"{tried:,} tried, {lost} lost" in (DOCS / "chaos.md").read_text(encoding="utf-8")
