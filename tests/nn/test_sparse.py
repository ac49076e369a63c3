"""Sparse attention against masked full attention: the same numbers and gradients, from fewer scores.

That cuts, documents and padding make no difference is among the laws of reading, which run over patterns too.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from segue import native
from segue.config import Reach, XLConfig
from segue.errors import ConfigError
from segue.nn import blockwise
from segue.nn.attention import gather, textbook
from segue.nn.layout import HOST
from segue.nn.mask import AttentionMask
from segue.nn.patterns import BlockGrid, Pattern
from segue.nn.positions import RelativeKeys
from segue.nn.sparse import attend_in_parts, attend_sparse, part_scores, whole_scores
from support import build, shape, some_tokens, sparse_settings

SEES = ("both", "near", "far")


@pytest.fixture(autouse=True)
def a_few_are_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "QUERY_BLOCK", 3)


def random(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


def places_of(documents: Tensor | None, seen: Tensor, held: int, keys: int) -> Tensor:
    """(B, S) By the definition: memory ends before the token numbered `seen`; later documents begin at 0."""
    places = seen[:, None] - held + torch.arange(keys)
    for lane, row in enumerate(() if documents is None else documents.tolist()):
        for key in range(max(held, 1), keys):
            if row[key] > 0:
                places[lane, key] = 0 if row[key] != row[key - 1] else places[lane, key - 1] + 1
    return places


@st.composite
def patterns(draw: st.DrawFn, sees: tuple[str, ...] = SEES) -> Pattern:
    heads = draw(st.integers(1, 3)) if "by-head" not in sees else draw(st.integers(2, 4))
    summary = draw(st.integers(1, 3))
    stride = summary * draw(st.integers(1, 4))
    if draw(st.booleans()):
        return Pattern("strided", draw(st.integers(1, 9)), 0, heads, draw(st.sampled_from(sees)))
    return Pattern("fixed", stride, summary, heads, draw(st.sampled_from(sees)))


@st.composite
def masks(draw: st.DrawFn, pattern: Pattern) -> tuple[int, AttentionMask]:
    lanes, held, size = draw(st.integers(1, 3)), draw(st.integers(0, 14)), draw(st.integers(1, 14))
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    documents = None
    if draw(st.booleans()):
        foreign = torch.randint(0, held + 1, (lanes, 1), generator=numbers)
        remembered = torch.where(torch.arange(held) < foreign, -1, 0)
        here = (torch.rand(lanes, size, generator=numbers) < 0.2).long().cumsum(dim=1)
        documents = torch.cat([remembered, here], dim=1)
    grid = None
    if pattern.kind == "fixed":
        seen = torch.randint(0, 30, (lanes,), generator=numbers)
        places = places_of(documents, seen, held, held + size)
        grid = BlockGrid(places, documents, held, pattern.stride, HOST)
    span = draw(st.one_of(st.none(), st.integers(1, held + size + 2)))
    return lanes, AttentionMask(held, size, span, documents, pattern=pattern, grid=grid)


@st.composite
def relations(draw: st.DrawFn, mask: AttentionMask) -> RelativeKeys | None:
    assert mask.pattern is not None
    if draw(st.booleans()):
        return None
    rows, heads = draw(st.integers(0, mask.keys + 3)), mask.pattern.heads
    width = draw(st.sampled_from([0, 3]))
    bias = random(rows, heads) if not width or draw(st.booleans()) else None
    return RelativeKeys(random(rows, heads, width), random(heads, 3), random(heads, 3), bias)


@pytest.mark.parametrize("ways", [SEES, ("by-head",)], ids=["one set", "a set for each half of the heads"])
@given(data=st.data())
def test_it_equals_the_textbook_under_the_union_mask(ways: tuple[str, ...], data: st.DataObject) -> None:
    torch.manual_seed(0)
    pattern = data.draw(patterns(ways))
    lanes, mask = data.draw(masks(pattern))
    relative = data.draw(relations(mask))
    query = random(mask.size, lanes, pattern.heads, 3)
    keys_values = random(2, mask.keys, lanes, pattern.heads, 3)
    attend = attend_sparse if ways == ("by-head",) else attend_in_parts
    expected = textbook(query, keys_values, relative, mask, 0.5)
    gathered = attend(query, keys_values, relative, mask, 0.5)
    assert_close(gathered, expected)
    with torch.no_grad():
        assert_close(attend(query, keys_values, relative, mask, 0.5), expected)
    leaves = [query, keys_values]
    if relative is not None:
        named = (relative.rows, relative.content_bias, relative.position_bias, relative.row_bias)
        leaves += [leaf for leaf in named if leaf is not None]
    arriving = torch.randn_like(expected)
    for found, wanted in zip(
        torch.autograd.grad(gathered, leaves, arriving, materialize_grads=True, allow_unused=True),
        torch.autograd.grad(expected, leaves, arriving, materialize_grads=True, allow_unused=True),
        strict=True,
    ):
        assert_close(found, wanted)


def causal(size: int, pattern: Pattern | None) -> AttentionMask:
    grid = None
    if pattern is not None and pattern.kind == "fixed":
        grid = BlockGrid(torch.arange(size)[None], None, 0, pattern.stride, HOST)
    return AttentionMask(0, size, pattern=pattern, grid=grid)


@pytest.mark.parametrize(
    "pattern",
    [
        Pattern("strided", 12, 0, 2),
        Pattern("strided", 1, 0, 2, "far"),
        Pattern("fixed", 12, 3, 2),
        Pattern("fixed", 4, 4, 2),
        Pattern("fixed", 1, 1, 2, "far"),
    ],
    ids=str,
)
def test_a_pattern_without_gaps_is_full_attention(pattern: Pattern) -> None:
    query, keys_values = random(12, 1, 2, 3), random(2, 12, 1, 2, 3)
    full = textbook(query, keys_values, None, causal(12, None), 0.5)
    assert_close(attend_in_parts(query, keys_values, None, causal(12, pattern), 0.5), full)


@given(st.integers(1, 30), st.integers(1, 8), st.data())
def test_two_steps_reach_every_earlier_token(size: int, stride: int, data: st.DataObject) -> None:
    """The boolean product of the two masks fills the lower triangle; of `fixed`, for the first head."""
    summary = data.draw(st.sampled_from([c for c in range(1, stride + 1) if stride % c == 0]))
    for kind in ("strided", "fixed"):
        near, far = (
            causal(size, Pattern(kind, stride, summary, 1, sees)).dense(HOST).view(size, size).long()
            for sees in ("near", "far")
        )
        assert torch.equal((far @ near) > 0, torch.ones(size, size).tril() > 0)


@given(patterns())
def test_no_query_is_without_keys(pattern: Pattern) -> None:
    visible = causal(17, pattern).dense(HOST)
    assert visible[..., torch.arange(17), torch.arange(17)].all()


class Softmaxed(TorchDispatchMode):
    """Counts the scores that any softmax is taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "softmax" in function.name():
            self.scores += args[0].numel()
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("pattern", [Pattern("strided", 32, 0, 1), Pattern("fixed", 32, 4, 1)], ids=str)
def test_what_is_masked_is_not_computed(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.SWITCH, "0")  # torch's scores can be counted
    monkeypatch.setattr(blockwise, "QUERY_BLOCK", 128)
    size, mask = 1024, causal(1024, pattern)
    query, keys_values = torch.randn(size, 1, 1, 2), torch.randn(2, size, 1, 1, 2)
    with Softmaxed() as counted, torch.no_grad():
        gather(query, keys_values, None, mask, 1.0)
    parts = 2 * size  # the two shares that merge the parts are a softmax as well
    assert counted.scores - parts == part_scores(mask) < size**2 / 2 * 0.6
    assert part_scores(mask) < whole_scores(mask)


def test_no_gradient_comes_from_outside_the_pattern() -> None:
    pattern = Pattern("fixed", 4, 1, 1)
    query, keys_values = random(16, 1, 1, 3), random(2, 16, 1, 1, 3)
    attend_in_parts(query, keys_values, None, causal(16, pattern), 0.5)[9].sum().backward()
    assert keys_values.grad is not None
    reached = keys_values.grad.abs().sum(dim=(0, 2, 3, 4)) > 0
    assert reached.nonzero().flatten().tolist() == [3, 7, 8, 9]


@pytest.mark.parametrize("combine", ["merged", "layers", "heads"])
@pytest.mark.parametrize("pattern", [{"pattern": "strided"}, {"pattern": "fixed", "summary": 2}], ids=str)
def test_long_segments_are_read_like_single_tokens(
    pattern: dict[str, object], combine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long enough that segments are computed in parts; lanes in different places of their documents."""
    monkeypatch.setattr(blockwise, "QUERY_BLOCK", 8)
    model = build(shape("xl", stride=4, combine=combine, **pattern))
    tokens, starts = some_tokens(2, 80), torch.zeros(2, 80).bool()
    starts[0, 33] = starts[1, 50] = True
    reach = Reach(memory=80, clamp=30)
    whole, _ = model(tokens, model.start(lanes=2, reach=reach), starts=starts)
    engine = model.frozen()
    memory, singly = engine.start(lanes=2, reach=reach), []
    for token, start in zip(tokens.split(1, dim=1), starts.split(1, dim=1), strict=True):
        hidden, memory = engine(token, memory, starts=start)
        singly.append(hidden)
    assert_close(torch.cat(singly, dim=1), whole)
    segment, _ = engine(tokens, engine.start(lanes=2, reach=reach), starts=starts)
    assert_close(segment, whole)


def test_autocast_computes_patterns_in_float32() -> None:
    model = build(shape("xl", pattern="fixed", stride=4, summary=2)).float()
    memory = model.start(reach=Reach(memory=8))
    exact, _ = model(some_tokens(1, 20), memory)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, _ = model(some_tokens(1, 20), memory)
    assert_close(rounded.float(), exact, atol=0.3, rtol=0.1)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"pattern": "strided"}, "needs stride of 1 or more; found stride=0"),
        ({"pattern": "fixed", "stride": 4}, "needs summary of 1 or more"),
        ({"pattern": "strided", "stride": 4, "summary": 2}, "needs no summary"),
        ({"stride": 4}, "pattern 'full' needs no stride"),
        ({"combine": "layers"}, "needs pattern 'strided' or 'fixed'"),
        ({"pattern": "fixed", "stride": 5, "summary": 2}, "stride 5 is not a multiple of summary 2"),
        ({"pattern": "strided", "stride": 4, "combine": "heads", "heads": 1}, "needs 2 heads or more"),
        ({"pattern": "strided", "stride": 4, "combine": "layers", "layers": 1}, "needs 2 layers or more"),
        ({"pattern": "strided", "stride": 4, "attention_dropout": 0.1}, "use dropout"),
    ],
    ids=str,
)
def test_settings_that_make_no_pattern_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        shape(**settings)


@given(st.data())
def test_all_drawn_settings_are_patterns(data: st.DataObject) -> None:
    """That the laws of reading see patterns at all."""
    settings = data.draw(sparse_settings(2, 2))
    assert isinstance(shape(**settings), XLConfig)
