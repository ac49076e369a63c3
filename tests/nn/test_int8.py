"""Weights as 8-bit integers: nearly the same numbers, in all ways of reading."""

import pytest
import torch
from torch.testing import assert_close

from segue.config import Reach, RecurrentConfig
from segue.errors import InputError
from segue.nn.int8 import Int8Linear, in_int8
from segue.nn.recurrent import RecurrentModel
from segue.nn.xl import TransformerXL
from support import shape, some_tokens

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="torch has no fbgemm here"
)


def model(norm: str = "post") -> TransformerXL:
    torch.manual_seed(0)
    return TransformerXL(shape(width=32, heads=4, inner=64, norm=norm, init=0.1)).eval()


def test_a_layer_is_rounded_to_its_scale() -> None:
    exact = torch.nn.Linear(64, 48)
    given = torch.randn(3, 5, 64)
    found = Int8Linear(exact)(given)
    assert found.shape == (3, 5, 48)
    assert not torch.equal(found, exact(given))
    assert (found - exact(given)).square().mean().sqrt() < 0.02 * exact(given).std()


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_it_reads_nearly_the_same_by_steps_and_by_segments(norm: str) -> None:
    exact, rounded = model(norm), in_int8(model(norm))
    tokens, reach = some_tokens(2, 40), Reach(memory=16, span=16)
    wanted, _ = exact(tokens, exact.start(lanes=2, reach=reach))
    memory = rounded.projected(rounded.start(lanes=2, reach=reach))
    at_once, _ = rounded(tokens, memory)
    assert_close(at_once, wanted, rtol=0, atol=0.2 * float(wanted.std()))
    assert not torch.equal(at_once, wanted)
    parts = []
    for token in tokens.split(1, dim=1):
        hidden, memory = rounded(token, memory)
        parts.append(hidden)
    assert_close(torch.cat(parts, dim=1), wanted, rtol=0, atol=0.2 * float(wanted.std()))


def test_what_cannot_be_rounded_is_refused() -> None:
    with pytest.raises(InputError, match="int8 is for float32 models on a CPU; this one is torch.float64"):
        in_int8(model().double())
    with pytest.raises(InputError, match="int8 is for Transformers"):
        in_int8(RecurrentModel(RecurrentConfig(vocab=9, width=8)))
