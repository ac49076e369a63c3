"""Products of permutations, and models that follow them."""

import pytest
import torch

from segue.lab.depth import (
    ADAPTIVE,
    GENERATORS,
    MODELS,
    followed,
    read,
    scored,
    second_at_most,
    sequences,
    table,
    tell,
)
from segue.lab.experiment import Results, Verdict
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


def test_followed_counts_places() -> None:
    assert [followed(shares) for shares in ([1.0, 0.95, 0.2, 1.0], [0.1, 1.0], [1.0, 0.9])] == [3, 1, 2]


@pytest.mark.parametrize("name", ["1 layer", "4 layers", "one block, 8 steps"])
def test_without_a_mark_of_the_beginning_attention_cannot_count_to_two(name: str) -> None:
    """What `second_at_most` says of second answers: `x x` gives the hidden state of `x`."""
    torch.manual_seed(0)
    model = build_language_model(MODELS[name].config).double().eval()
    hidden, _ = read(MODELS[name], model, torch.tensor([[1, 1], [1, 2]]))
    torch.testing.assert_close(hidden[0, 1], hidden[0, 0], rtol=0, atol=1e-12)
    assert (hidden[1, 1] - hidden[1, 0]).abs().max() > 1e-3
    assert second_at_most("Z2") == 3 / 4
    assert second_at_most("S5") == 13 / 16


@pytest.mark.parametrize("name", MODELS)
def test_no_model_sees_the_permutations_ahead(name: str) -> None:
    torch.manual_seed(0)
    setup = MODELS[name]
    model = build_language_model(setup.config).double().eval()
    tokens, _ = sequences("S5", 2, 20, torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 13:] = (other[:, 13:] + 1) % 4
    (one, _), (changed, _) = read(setup, model, tokens), read(setup, model, other)
    torch.testing.assert_close(one[:, :13], changed[:, :13])
    assert not torch.equal(one[:, 13:], changed[:, 13:])


def test_the_adaptive_model_tells_its_steps_and_no_other_does() -> None:
    torch.manual_seed(0)
    for name in (ADAPTIVE, "one block, 2 steps", "2 layers"):
        setup = MODELS[name]
        facts = scored(setup, build_language_model(setup.config).eval(), "S5", 16)
        assert len(facts["right"]) == 16
        assert len(facts["steps"]) == (16 if name == ADAPTIVE else 0)
        assert all(1 <= steps <= setup.depth for steps in facts["steps"])


def _results(chosen: list[list[float]]) -> Results:
    """Every model follows half of 16 places, as a record on disk would say it."""
    shares = [[1.0] * 8 + [0.0] * 8] * len(chosen)
    return {
        "length": 16,
        "steps": 1,
        "lanes": 1,
        "elements": {"S5": 120},
        "parameters": dict.fromkeys(MODELS, 1),
        "depths": {name: setup.depth for name, setup in MODELS.items()},
        "right": {"S5": dict.fromkeys(MODELS, shares)},
        "chosen": chosen,
    }


@pytest.mark.parametrize(
    ("end", "shown"), [(6.0, True), (4.05, False), (2.0, False)], ids=["more", "a margin's less", "fewer"]
)
def test_more_steps_must_be_chosen_with_every_seed_and_by_a_margin(end: float, shown: bool) -> None:
    seeds = [[4.0] * 8 + [end] * 8, [4.0] * 8 + [end + 0.01] * 8]
    verdicts = [block for block in tell(_results(seeds)) if isinstance(block, Verdict)]
    (chosen,) = [one for one in verdicts if one.claim.startswith("Tokens halt sooner")]
    assert chosen.shown is shown
    against = [[4.0] * 16, seeds[0]]
    verdicts = [block for block in tell(_results(against)) if isinstance(block, Verdict)]
    assert not next(one for one in verdicts if one.claim.startswith("Tokens halt sooner")).shown
