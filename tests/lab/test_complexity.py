"""What layers cost: counted products, paths and waiting are those that can be reckoned by hand."""

import math

import pytest

from segue.lab import complexity
from segue.lab.layers import KERNEL, LAYERS, PATHS, SHORT, costs, waiting


def test_products_are_those_of_the_formulas() -> None:
    assert costs(LAYERS["recurrent"], 10, 8)["products"] == 2 * 10 * 8 * 8
    assert costs(LAYERS["convolution"], 10, 8)["products"] == KERNEL * 10 * 8 * 8
    assert costs(LAYERS["self-attention"], 100, 8)["products"] == 2 * 100 * 100 * 8


def test_memory_counts_neither_weights_nor_input() -> None:
    """A convolution keeps its padded input: as much for each token, and a fixed number more."""
    kept = [costs(LAYERS["convolution"], length, 8)["kept"] for length in (10, 20)]
    assert kept == [4 * 8 * (length + KERNEL - 1) for length in (10, 20)]


@pytest.mark.parametrize("length", [9, 33])
def test_paths(length: int) -> None:
    assert PATHS["self-attention"](length) == 1
    assert PATHS["convolution"](length) == math.ceil((length - 1) / (KERNEL - 1))
    assert PATHS["restricted attention"](length) == math.ceil((length - 1) / (SHORT - 1))
    assert PATHS["dilated convolution"](length) == math.ceil(math.log(length, KERNEL))


def test_only_a_recurrent_layer_waits() -> None:
    for name, layer in LAYERS.items():
        short, long = waiting(layer, 10), waiting(layer, 20)
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
