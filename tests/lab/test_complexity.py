"""Complexity of layers: multiplications, path lengths and sequential operations equal those calculated by hand."""

import math

import pytest
import torch

from segue.lab import complexity
from segue.lab.layers import (
    KERNEL,
    LAYERS,
    PATH_WINDOW,
    PATHS,
    costs,
    fewest_operations,
    sequential_operations,
)


def test_products_are_those_of_the_formulas() -> None:
    assert costs(LAYERS["recurrent"], 10, 8)["products"] == 2 * 10 * 8 * 8
    assert costs(LAYERS["convolution"], 10, 8)["products"] == KERNEL * 10 * 8 * 8
    assert costs(LAYERS["self-attention"], 100, 8)["products"] == 2 * 100 * 100 * 8


def test_memory_counts_neither_weights_nor_input() -> None:
    """A convolution saves its padded input: the same for each token, and a constant for the padding."""
    kept = [costs(LAYERS["convolution"], length, 8)["kept"] for length in (10, 20)]
    assert kept == [4 * 8 * (length + KERNEL - 1) for length in (10, 20)]


@pytest.mark.parametrize("length", [9, 33])
def test_paths(length: int) -> None:
    assert PATHS["self-attention"](length) == 1
    assert PATHS["recurrent"](length) == length
    assert PATHS["convolution"](length) == math.ceil((length - 1) / (KERNEL - 1))
    assert PATHS["restricted attention"](length) == math.ceil((length - 1) / (PATH_WINDOW - 1))
    assert PATHS["dilated convolution"](length) == math.ceil(math.log(length, KERNEL))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_path_is_the_shortest_that_there_is(stride: int) -> None:
    """With a connection from `stride` steps before, the path has fewer steps."""
    first = torch.ones(1, requires_grad=True)
    states = [first.tanh()]
    for step in range(1, 13):
        states.append((states[step - 1] + states[max(0, step - stride)]).tanh())
    assert fewest_operations(states[12], first, "TanhBackward0") == 1 + 12 // stride


def exponents(products: float) -> dict[str, dict[str, float]]:
    return {"products": {"n": products}, "largest": {"n": 1.0}, "kept": {"n": 0.9}}


def test_full_attention_does_not_pass_for_linear() -> None:
    """Its memory is linear too, since it is computed in blocks: only its multiplications are not."""
    assert complexity._linear(exponents(1.02))
    assert not complexity._linear(exponents(1.95))


def test_only_a_recurrent_layer_waits() -> None:
    for name, layer in LAYERS.items():
        short, long = sequential_operations(layer, 10), sequential_operations(layer, 20)
        assert (long > 1.5 * short) == (name == "recurrent")


def test_exponents_and_crossings_are_fitted_to_powers() -> None:
    sizes = [1, 2, 4, 8, 16]
    assert complexity._exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    steep, flat = [size**2 / 5 for size in sizes], [float(size) for size in sizes]
    results = {
        "layers": {
            "self-attention": {"n": {"sizes": sizes, "products": steep}},
            "recurrent": {"n": {"sizes": sizes, "products": flat}},
        }
    }
    assert complexity.crossing(results, "products")["at"] == pytest.approx(5)
