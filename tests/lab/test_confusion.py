"""With a memory, restarting positions give memory and segment equal weights; all other positions do not."""

import math

import pytest
import torch

from segue.checkpoint import Bundle
from segue.config import Reach, Reading
from segue.errors import ConfigError
from segue.lab.confusion import weight_difference
from support import build, shape


def apart(encoding: str, positions: str) -> float:
    reach = Reach(memory=6, positions=positions)
    model = build(shape(encoding, vocab=40))
    return weight_difference(Bundle(model, Reading(segment=6, reach=reach)))


def test_only_confused_positions_are_confused() -> None:
    assert apart("sinusoidal", "confused") < 1e-9
    assert apart("sinusoidal", "onward") > 1e-3
    assert apart("xl", "onward") > 1e-3


def test_a_head_so_sharp_that_weights_are_nothing_is_measured_too() -> None:
    model = build(shape("sinusoidal", vocab=40))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "attention" in name and weight.dim() > 1:
                weight.mul_(1e3)
    apart = weight_difference(Bundle(model, Reading(segment=6, reach=Reach(memory=6, positions="onward"))))
    assert math.isfinite(apart)


def test_confusion_must_be_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match="cannot tell the segments apart"):
        Reach(memory=6, positions="restart")


def test_confused_positions_are_those_of_isolated_segments() -> None:
    model, tokens = build(shape("sinusoidal")), torch.arange(8).view(2, 4)
    alone, _ = model(tokens, model.start(lanes=2, reach=Reach(memory=0, positions="restart")))
    confused, _ = model(tokens, model.start(lanes=2, reach=Reach(memory=4, positions="confused")))
    torch.testing.assert_close(confused, alone)  # while there is no memory yet
