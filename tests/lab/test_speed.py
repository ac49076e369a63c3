"""The sliding windows in the speed experiment compute what a vanilla model computes."""

import subprocess
import sys

import pytest
import torch

from segue.config import Reach, XLConfig
from segue.lab.profiling import exponent, peak_resident
from segue.lab.sliding_window import fast_window, textbook_window
from segue.nn.xl import TransformerXL


def test_a_window_read_anew_is_the_vanilla_model() -> None:
    torch.manual_seed(0)
    config = XLConfig(vocab=11, width=16, layers=3, heads=2, encoding="sinusoidal")
    model, tokens = TransformerXL(config).double().eval(), torch.arange(26).view(2, 13) % 11
    with torch.no_grad():
        hidden, _ = model(tokens, model.start(lanes=2, reach=Reach(memory=0, positions="restart")))
        torch.testing.assert_close(textbook_window(model, tokens), hidden[:, -1:])
        torch.testing.assert_close(fast_window(model, tokens), hidden[:, -1:])


def test_the_exponent_of_a_power_is_that_power() -> None:
    assert exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2)


def test_the_peak_is_what_this_process_held_and_not_who_started_it() -> None:
    """The parent's memory does not count as the child's."""
    held = bytearray(200 * 2**20)
    assert peak_resident() > len(held)
    code = "from segue.lab.profiling import peak_resident; print(peak_resident())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(done.stdout) < len(held)
