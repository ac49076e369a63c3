"""Attention with some of its four terms: the sum of those terms, written out one by one."""

import pytest
import torch
from torch import Tensor

from segue.config import Reach, XLConfig
from segue.lab.terms import SETS, TERMS, SomeTerms, built, relative_scores
from segue.nn.attention import attention_scores
from segue.nn.mask import AttentionMask
from segue.nn.positions import RelativeKeys, sinusoids
from segue.nn.xl import TransformerXL

CONFIG = XLConfig(vocab=11, width=8, layers=2, heads=2)


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def relative_terms(query: Tensor, key: Tensor, relative: RelativeKeys) -> dict[str, Tensor]:
    """(B, H, T, S) Transformer-XL's terms, one number at a time."""
    (queries, lanes, heads, _), keys = query.shape, len(key)
    terms = {name: torch.zeros(lanes, heads, queries, keys, dtype=query.dtype) for name in TERMS}
    for t in range(queries):
        for s in range(keys - queries + t + 1):  # the keys that query t may see
            row = relative.rows[len(relative.rows) - 1 - (keys - queries + t - s)]
            u, v = relative.content_bias, relative.position_bias
            terms["a"][:, :, t, s] = (query[t] * key[s]).sum(-1)
            terms["b"][:, :, t, s] = (query[t] * row).sum(-1)
            terms["c"][:, :, t, s] = (u * key[s]).sum(-1)
            terms["d"][:, :, t, s] = (v * row).sum(-1)
    return terms


@pytest.mark.parametrize("kept", SETS)
def test_relative_scores_are_the_sum_of_the_kept_terms(kept: str) -> None:
    query, key, rows, u, v = drawn((3, 2, 2, 4), (7, 2, 2, 4), (9, 2, 4), (2, 4), (2, 4))
    relative = RelativeKeys(rows, u, v)
    terms, seen = relative_terms(query, key, relative), AttentionMask(4, 3).dense(torch.device("cpu"))
    scores = relative_scores(query, key, relative, kept).masked_fill(~seen, 0)
    torch.testing.assert_close(scores, sum(terms[name] for name in kept))
    if kept == TERMS:
        torch.testing.assert_close(attention_scores(query, key, relative).masked_fill(~seen, 0), scores)


@pytest.mark.parametrize("kept", SETS)
def test_absolute_attention_is_that_of_the_kept_terms(kept: str) -> None:
    model = built(CONFIG.model_copy(update={"encoding": "none"}), kept, seed=0).double()
    attention = model.blocks[0].attention  # type: ignore[union-attr]
    assert isinstance(attention, SomeTerms)
    inputs, mask = drawn((5, 3, 8))[0], AttentionMask(0, 5)
    places = sinusoids(torch.arange(5), 8, torch.float64)[:, None].expand(5, 3, 8)
    by = {"x": inputs, "p": places}
    query = {name: attention.query(side).unflatten(-1, (2, -1)) for name, side in by.items()}
    key = {name: attention.project(side.contiguous())[0] for name, side in by.items()}
    pairs = {"a": "xx", "b": "xp", "c": "px", "d": "pp"}
    scores = sum(torch.einsum("tbhd,sbhd->bhts", query[pairs[name][0]], key[pairs[name][1]]) for name in kept)
    assert isinstance(scores, Tensor)
    hidden = (scores * attention.scale).masked_fill(~mask.dense(torch.device("cpu")), float("-inf"))
    value = attention.project(inputs)[1]
    wanted = attention.out(torch.einsum("bhts,sbhd->tbhd", hidden.softmax(-1), value).flatten(2))
    torch.testing.assert_close(attention(inputs, attention.project(inputs), None, mask), wanted)


def test_a_model_with_all_terms_is_the_model_itself() -> None:
    torch.manual_seed(3)
    model, tokens = TransformerXL(CONFIG).double(), torch.arange(24).view(2, 12) % 11
    hidden, memory = model(tokens, model.start(lanes=2, reach=Reach(memory=8)))
    again = built(CONFIG, TERMS, seed=3).double()
    same, kept = again(tokens, again.start(lanes=2, reach=Reach(memory=8)))
    torch.testing.assert_close(same, hidden)
    torch.testing.assert_close(again(tokens, kept)[0], model(tokens, memory)[0])
