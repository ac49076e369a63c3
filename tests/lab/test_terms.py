"""The terms of attention scores, one by one, add up to the scores of the model."""

import pytest
import torch

from segue.config import Reach, XLConfig
from segue.lab.terms import TERMS, SomeTerms, built, relative_terms
from segue.nn.attention import attention_scores
from segue.nn.mask import AttentionMask
from segue.nn.positions import RelativeKeys
from segue.nn.xl import TransformerXL

CONFIG = XLConfig(vocab=11, width=8, layers=2, heads=2)


def test_the_four_terms_add_up_to_the_scores() -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, rows, u, v = (
        torch.randn(shape, generator=draw, dtype=torch.float64)
        for shape in ((3, 2, 2, 4), (7, 2, 2, 4), (7, 2, 4), (2, 4), (2, 4))
    )
    relative = RelativeKeys(rows, u, v)
    torch.testing.assert_close(
        sum(relative_terms(query, key, relative).values()), attention_scores(query, key, relative)
    )


def test_a_model_with_all_terms_is_the_model_itself() -> None:
    torch.manual_seed(3)
    model, tokens = TransformerXL(CONFIG).double(), torch.arange(24).view(2, 12) % 11
    hidden, memory = model(tokens, model.start(lanes=2, reach=Reach(memory=8)))
    again = built(CONFIG, TERMS, seed=3).double()
    same, kept = again(tokens, again.start(lanes=2, reach=Reach(memory=8)))
    torch.testing.assert_close(same, hidden)
    torch.testing.assert_close(again(tokens, kept)[0], model(tokens, memory)[0])


@pytest.mark.parametrize("encoding", ["xl", "none"])
@pytest.mark.parametrize(("kept", "asks"), [("a", True), ("b", True), ("c", False), ("d", False)])
def test_only_the_first_two_terms_depend_on_what_the_query_holds(
    encoding: str, kept: str, asks: bool
) -> None:
    model = built(CONFIG.model_copy(update={"encoding": encoding}), kept, seed=0).double()
    attention = model.blocks[0].attention  # type: ignore[union-attr]
    assert isinstance(attention, SomeTerms)
    one, other, keys = torch.randn(
        3, 5, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    relative, mask = model.relative_keys(5, None)[0], AttentionMask(0, 5)
    gathered, again = (attention(query, attention.project(keys), relative, mask) for query in (one, other))
    assert torch.equal(gathered, again) != asks
