"""Weights as 8-bit integers: nearly the same numbers in all ways of reading, and the laws of reading hold.

Rows are bit-equal wherever float32 is: integers add up exactly, and each row is rounded by itself.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach, RecurrentConfig
from segue.errors import InputError
from segue.nn.frozen import FrozenXL
from segue.nn.int8 import STEPS, Int8Linear
from segue.nn.memory import Memory
from segue.nn.recurrent import RecurrentModel
from segue.nn.xl import TransformerXL
from support import build, read_in_pieces, shape, shapes, some_tokens

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="torch has no fbgemm here"
)


LENGTH = 12


def model(norm: str = "post") -> TransformerXL:
    torch.manual_seed(0)
    return TransformerXL(shape(width=32, heads=4, feedforward=64, norm=norm, init=0.1)).eval()


def test_a_layer_is_rounded_to_its_scale() -> None:
    exact = torch.nn.Linear(64, 48)
    given = torch.randn(3, 5, 64)
    found = Int8Linear(exact)(given)
    assert found.shape == (3, 5, 48)
    assert not torch.equal(found, exact(given))
    assert (found - exact(given)).square().mean().sqrt() < 0.02 * exact(given).std()


@given(st.integers(1, 70), st.integers(1, 40), st.sampled_from([0, STEPS]), st.data())
def test_a_rows_result_is_its_own(width: int, outputs: int, zero: int, data: st.DataObject) -> None:
    torch.manual_seed(width)
    rounded = Int8Linear(torch.nn.Linear(width, outputs), zero=zero)
    rows = torch.randn(9, width) * torch.logspace(-6, 6, 9)[:, None]
    whole = rounded(rows)
    chosen = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=70))
    assert torch.equal(rounded(rows[chosen]), whole[chosen])
    assert torch.equal(rounded(rows.T.contiguous().T[None, 3]), whole[None, 3])


@pytest.mark.parametrize("zero", [0, STEPS])
@pytest.mark.parametrize("width", [1, 5, 64, 2048])
def test_products_are_exact_up_to_the_largest(width: int, zero: int) -> None:
    """Of integers, which rounding leaves as they are; on old processors larger ones would saturate 16 bits."""
    high, low = 2 * STEPS - zero, -zero
    exact = torch.nn.Linear(width, 7, bias=False)
    torch.manual_seed(width)
    weight = torch.randint(-STEPS, STEPS + 1, (7, width)).float()
    weight[:, -1], weight[0], weight[1] = STEPS, STEPS, -STEPS
    exact.weight.data = weight
    given = torch.randint(low, high + 1, (6, width)).float()
    given[:, 0], given[0], given[1] = high, high, float(low)
    wanted = given.double() @ weight.T.double()
    found = Int8Linear(exact, zero=zero)(given).double()
    assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_nothing_stays_nothing() -> None:
    exact = torch.nn.Linear(8, 3)
    assert torch.equal(Int8Linear(exact)(torch.zeros(2, 8)), exact.bias.detach().expand(2, 3))
    assert Int8Linear(exact)(torch.zeros(0, 8)).shape == (0, 3)


def start(engine: FrozenXL, lanes: int, data: st.DataObject) -> Memory:
    return engine.start(lanes=lanes, reach=Reach(memory=data.draw(st.integers(0, LENGTH))))


@given(st.data())
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_output(data: st.DataObject) -> None:
    model, tokens = build(data.draw(shapes())).float().frozen(int8=True), some_tokens(2, LENGTH)
    memory, change = start(model, 2, data), data.draw(st.integers(1, LENGTH - 1))
    other = tokens.clone()
    other[:, change:] = (other[:, change:] + 1) % model.config.vocab
    first, second = model(tokens, memory)[0], model(other, memory)[0]
    assert torch.equal(second[:, :change], first[:, :change])
    assert not torch.allclose(second[:, change:], first[:, change:])


@given(st.data())
@torch.no_grad()
def test_lanes_and_padding_never_change_a_lane(data: st.DataObject) -> None:
    model, tokens = build(data.draw(shapes())).float().frozen(int8=True), some_tokens(3, LENGTH)
    memory, length = start(model, 3, data), data.draw(st.integers(1, LENGTH))
    lengths = torch.tensor([LENGTH, length, LENGTH])
    other = some_tokens(3, LENGTH, seed=1)
    other[1, :length] = tokens[1, :length]
    first, second = (model(some, memory, lengths=lengths) for some in (tokens, other))
    assert torch.equal(second[0][1], first[0][1])
    more = some_tokens(3, 1)
    again = [model(more, after)[0][1] for _, after in (first, second)]
    assert torch.equal(*again)


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_where_the_seams_fall_makes_no_difference(norm: str) -> None:
    """But for float32's own: where a sum of floats ends in another bit, a number may be rounded to the next step."""
    exact, rounded = model(norm).frozen(), model(norm).frozen(int8=True)
    tokens, reach = some_tokens(2, 40), Reach(memory=40)

    def read(engine: FrozenXL, cuts: list[int]) -> Tensor:
        return read_in_pieces(engine, tokens, engine.start(lanes=2, reach=reach), cuts)[0]

    whole = read(rounded, [])
    lost = (whole - read(exact, [])).square().mean().sqrt()
    for cuts in ([7], [3, 4, 20, 33], list(range(1, 40))):
        apart = (read(rounded, cuts) - whole).abs().amax(dim=-1)
        assert (apart < 1e-5).float().mean() > 0.9
        assert apart.max() < lost


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_it_reads_nearly_the_same_by_steps_and_by_segments(norm: str) -> None:
    exact, rounded = model(norm).frozen(), model(norm).frozen(int8=True)
    tokens, reach = some_tokens(2, 40), Reach(memory=16, span=16)
    wanted, _ = exact(tokens, exact.start(lanes=2, reach=reach))
    memory = rounded.start(lanes=2, reach=reach)
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
        model().double().frozen(int8=True)
    with pytest.raises(InputError, match="int8 is for Transformer-XL"):
        RecurrentModel(RecurrentConfig(vocab=9, width=8)).frozen(int8=True)
