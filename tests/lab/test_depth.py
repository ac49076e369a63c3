"""Products of permutations, and models that follow them."""

import pytest
import torch

from segue.lab.depth import GENERATORS, MODELS, followed, read, sequences, table
from segue.nn.models import build_language_model


@pytest.mark.parametrize(("group", "elements"), [("Z2", 2), ("S3", 6), ("S5", 120)])
def test_the_generators_generate_the_group(group: str, elements: int) -> None:
    products, reached = table(group), {0}
    while (more := reached | set(products[sorted(reached)].flatten().tolist())) != reached:
        reached = more
    assert len(products) == len(reached) == elements


def test_products_are_those_of_permutations() -> None:
    tokens, products = sequences("S5", 3, 9, torch.Generator().manual_seed(0))
    for lane, answers in zip(tokens.tolist(), products.tolist(), strict=True):
        product = tuple(range(5))
        for token, answer in zip(lane, answers, strict=True):
            product = tuple(product[place] for place in GENERATORS["S5"][token])
            assert answer == sorted(_all_of_five()).index(product)


def _all_of_five() -> list[tuple[int, ...]]:
    from itertools import permutations

    return list(permutations(range(5)))


def test_followed_counts_the_first_places() -> None:
    assert [followed(shares) for shares in ([1.0, 0.95, 0.2, 1.0], [0.1, 1.0], [1.0, 0.9])] == [2, 0, 2]


@pytest.mark.parametrize("name", MODELS)
def test_no_model_sees_the_permutations_ahead(name: str) -> None:
    torch.manual_seed(0)
    setup = MODELS[name]
    model = build_language_model(setup.config).double().eval()
    tokens, _ = sequences("S5", 2, 20, torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 13:] = (other[:, 13:] + 1) % 4
    one, changed = read(setup, model, tokens), read(setup, model, other)
    torch.testing.assert_close(one[:, :13], changed[:, :13])
    assert not torch.equal(one[:, 13:], changed[:, 13:])
