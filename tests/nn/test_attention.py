"""Attention against an oracle that is too simple to be wrong: the published sums, written out."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.nn.attention import attention_scores, relative_shift
from segue.nn.positions import sinusoids
from support import build, shape


@given(st.integers(1, 5), st.integers(0, 5))
def test_the_shift_puts_each_distance_at_its_key(queries: int, held: int) -> None:
    keys = held + queries
    columns = torch.arange(keys).flip(0)  # column j is distance S-1-j
    shifted = relative_shift(columns.expand(2, queries, keys).double())
    for query in range(queries):
        for key in range(held + query + 1):
            assert shifted[1, query, key] == held + query - key


def past_of(scores: Tensor, held: int, query: int) -> Tensor:
    """(H, keys) One query's scores less that of its own key: all that softmax sees of them."""
    seen = scores[0, :, query, : held + query + 1]
    return seen - seen[:, -1:]


def test_the_four_terms_of_the_paper() -> None:
    model = build(shape("xl", biases="per-layer", heads=2, head_width=3, width=6))
    positions, layer, queries, keys, clamp = model.positions, 1, 4, 7, 4
    query = torch.randn(queries, 1, 2, 3, dtype=torch.float64)
    key = torch.randn(keys, 1, 2, 3, dtype=torch.float64)
    u, v, project = (
        positions.content_bias[layer],
        positions.position_bias[layer],
        positions.projections[layer],
    )
    for limit in (None, clamp):
        found = attention_scores(
            query, key, positions.relative_keys(layer, positions.distances(keys, limit, query))
        )
        wanted = torch.zeros(1, 2, queries, keys, dtype=torch.float64)
        for head, i, j in itertools.product(range(2), range(queries), range(keys)):
            distance = torch.tensor(min(max(0, keys - queries + i - j), limit or keys))
            r = project(sinusoids(distance, 6, torch.float64)).view(2, 3)[head]
            q, k = query[i, 0, head], key[j, 0, head]
            wanted[0, head, i, j] = q @ k + q @ r + u[head] @ k + v[head] @ r
        for i in range(queries):
            assert_close(past_of(found, keys - queries, i), past_of(wanted, keys - queries, i))


def test_shaws_table_reuses_its_farthest_row() -> None:
    model = build(shape("shaw", max_distance=3, biases="per-layer"))
    positions, layer, queries, keys = model.positions, 0, 3, 8
    query, key = (torch.randn(n, 1, 2, 4, dtype=torch.float64) for n in (queries, keys))
    for clamp, rows in ((None, 3), (2, 2), (9, 3)):
        found = attention_scores(
            query, key, positions.relative_keys(layer, positions.distances(keys, clamp, query))
        )
        wanted = torch.zeros_like(found)
        for i, j in itertools.product(range(queries), range(keys)):
            row = min(max(0, keys - queries + i - j), rows - 1)
            terms = (query[i, 0] + positions.content_bias[layer]) * key[j, 0]
            terms = terms + query[i, 0] * positions.table[layer, row]
            wanted[0, :, i, j] = terms.sum(-1) + positions.table_bias[layer, row]
        for i in range(queries):
            assert_close(past_of(found, keys - queries, i), past_of(wanted, keys - queries, i))


def angles(place: int, width: int) -> Tensor:
    return torch.tensor(
        [place * 10000 ** (-2 * f / width) for f in range((width + 1) // 2)], dtype=torch.float64
    )


@given(st.integers(0, 5000), st.integers(1, 9))
def test_sinusoids_are_sines_then_cosines(place: int, width: int) -> None:
    wanted = torch.cat([angles(place, width).sin(), angles(place, width).cos()])[:width]
    assert_close(sinusoids(torch.tensor(place), width, torch.float64), wanted)


def test_positions_stay_exact_in_half_precision() -> None:
    places = torch.arange(4000)
    for kind in (torch.bfloat16, torch.float16):
        found = sinusoids(places, 64, kind)
        assert found.dtype == kind
        assert_close(found, sinusoids(places, 64, torch.float32).to(kind), rtol=0, atol=0)
        assert len(found[:, ::8].unique(dim=0)) > 3900  # counted in bfloat16 most would fall together
