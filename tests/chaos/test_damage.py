"""Damaged checkpoints: a sample of what `chaos/damage.py` tries in full, and that it would notice a loss."""

from pathlib import Path

import pytest

import damage
import segue.checkpoint
import segue.training.state


def test_a_flipped_bit_is_detected_or_without_effect(tmp_path: Path) -> None:
    tally = damage.every_bit(tmp_path / "bits", every=397)
    assert tally.tried > 250
    assert tally.losses == []
    assert tally.lost == 0


def test_the_newest_whole_checkpoint_is_taken_and_the_others_are_told_of(tmp_path: Path) -> None:
    tally = damage.random_damage(tmp_path / "random", count=150, seed=1)
    assert tally.tried == 150
    assert tally.losses == []
    assert tally.outcomes["passed over and told"] > 50


def test_a_loss_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (segue.checkpoint, segue.training.state):
        monkeypatch.setattr(room, "verify", lambda _: None)
    tally = damage.every_bit(tmp_path / "bits", every=997)
    assert tally.lost > 20
    assert any("other values were used" in loss for loss in tally.losses)
