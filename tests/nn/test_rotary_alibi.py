"""Rotary positions and ALiBi against their published formulas; the laws of reading hold for them as for the others."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from segue.config import Reach, XLConfig
from segue.errors import ConfigError, InputError
from segue.nn import attention, blockwise
from segue.nn.attention import attention_scores, attention_weights
from segue.nn.mask import AttentionMask
from segue.nn.positions import ALiBiPositions, RotaryPositions, alibi_slopes
from segue.nn.xl import TransformerXL
from support import build, shape, some_tokens


def test_the_published_slopes() -> None:
    assert alibi_slopes(8) == [2.0**-power for power in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    twelve = alibi_slopes(12)
    assert twelve[:8] == alibi_slopes(8)
    assert twelve[8:] == alibi_slopes(16)[::2][:4]


@pytest.mark.parametrize("clamp", [None, 3])
def test_alibi_subtracts_slopes_times_distances(clamp: int | None) -> None:
    config = shape("alibi", heads=3, head_width=4)
    query, key = torch.randn(2, 3, 5, 2, 3, 4, dtype=torch.float64)[:, 0]
    relative = ALiBiPositions(config).relative_keys(0, ALiBiPositions(config).distances(5, clamp, query))
    distance = (torch.arange(5)[:, None] - torch.arange(5)).clamp(max=clamp or 5)
    slopes = torch.tensor(alibi_slopes(3), dtype=torch.float64)[:, None, None]
    scores = torch.einsum("tbhd,sbhd->bhts", query, key) / 2 - slopes * distance
    expected = scores.masked_fill(distance < 0, -math.inf).softmax(dim=-1)
    assert_close(attention_weights(query, key, relative, AttentionMask(0, 5), 0.5), expected)


def test_rotary_positions_turn_pairs_as_complex_numbers() -> None:
    query, key = torch.randn(3, 2, 2, 6, dtype=torch.float64), torch.randn(7, 2, 2, 6, dtype=torch.float64)
    positions = RotaryPositions(shape("rotary", head_width=6))
    relative = positions.relative_keys(0, positions.distances(7, None, query))

    def complex_of(vectors: torch.Tensor, first: int) -> torch.Tensor:
        numbers = torch.complex(vectors[..., :3], vectors[..., 3:])
        angles = (first + torch.arange(len(vectors)))[:, None] * 10000.0 ** -(torch.arange(3) / 3)
        return numbers * torch.polar(torch.ones_like(angles), angles).to(numbers.dtype)[:, None, None]

    turned_query, turned_key = complex_of(query, 1004), complex_of(key, 1000)
    expected = torch.einsum("tbhd,sbhd->bhts", turned_query, turned_key.conj()).real
    assert_close(attention_scores(query, key, relative), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("encoding", ["rotary", "alibi"])
@pytest.mark.parametrize("span", [None, 4])
def test_the_fast_gradients_are_the_textbooks(
    encoding: str, span: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockwise, "QUERY_BLOCK", 3)
    model, tokens = build(shape(encoding)), some_tokens(2, 8)
    gradients = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(attention, "attend", attention.textbook)
        model.zero_grad()
        reach = Reach(memory=5, span=span)
        _, memory = model(some_tokens(2, 4, seed=1), model.start(lanes=2, reach=reach))
        hidden, _ = model(tokens, memory)
        model.nats(hidden, tokens).sum().backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    assert_close(gradients[0], gradients[1])


def test_far_into_a_stream_rotary_positions_are_as_exact_as_at_its_start() -> None:
    model = build(shape("rotary")).float()
    engine, reach, tokens = model.frozen(), Reach(memory=6), some_tokens(1, 9)
    begin = engine.start(reach=reach)
    far = replace(begin, seen=torch.tensor([10**8]))
    (near_hidden, near), (far_hidden, far) = engine(tokens, begin), engine(tokens, far)
    assert_close(far_hidden, near_hidden, rtol=1e-4, atol=1e-5)
    assert_close(engine(tokens[:, :1], far)[0], engine(tokens[:, :1], near)[0], rtol=1e-4, atol=1e-5)


def test_nothing_is_learned_for_them() -> None:
    weights = {
        encoding: sum(weight.numel() for weight in TransformerXL(shape(encoding)).parameters())
        for encoding in ("none", "rotary", "alibi")
    }
    assert len(set(weights.values())) == 1


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rotary' turns pairs of numbers; found head_width=1"):
        XLConfig(vocab=9, width=8, heads=8, encoding="rotary")
    with pytest.raises(InputError, match="clamp 3 limits distances"):
        build(shape("rotary")).start(reach=Reach(memory=4, clamp=3))
