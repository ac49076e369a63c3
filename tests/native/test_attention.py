"""The native core of attention: the textbook's numbers and gradients, the same bits however the work is cut."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue import native
from segue.config import Reach
from segue.nn import attention, native_attention
from segue.nn.attention import gather, textbook
from segue.nn.dropout import GRAINS, Dropout
from segue.nn.mask import AttentionMask
from segue.nn.native_attention import Dropped
from segue.nn.positions import RelativeKeys
from support import build, shape

pytestmark = pytest.mark.skipif(native.library() is None, reason=native.why())
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def one_thread_then_two() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, dtype=dtype, requires_grad=True)


@st.composite
def masks(draw: st.DrawFn, lanes: int) -> AttentionMask:
    size, held = draw(st.integers(1, 30)), draw(st.integers(0, 40))
    kind = draw(st.sampled_from(["causal", "both", "cross", "window"]))
    if kind == "window":
        mask = AttentionMask(size, size, causal=False, window=2 * draw(st.integers(0, size)))
    elif kind != "causal":
        mask = AttentionMask(size if kind == "both" else held + 1, size, causal=False)
    else:
        mask = AttentionMask(held, size, draw(st.none() | st.integers(1, held + size + 2)))
        if draw(st.booleans()):
            own = torch.randint(0, 2, (lanes, size), dtype=torch.int64).cumsum(dim=1)
            return replace(mask, documents=torch.cat([torch.randint(-1, 1, (lanes, held)), own], dim=1))
    if draw(st.booleans()):
        padding = torch.rand(lanes, 1, size if mask.causal else 1, mask.keys) < 0.4
        padding[..., :1] = False
        if mask.causal:
            padding[..., torch.arange(size), mask.held + torch.arange(size)] = False  # a query sees itself
        mask = replace(mask, padding=padding.expand(-1, -1, size, -1))
    return mask


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, RelativeKeys | None, AttentionMask]:
    torch.manual_seed(draw(st.integers(0, 1000)))
    lanes, heads, width = draw(st.integers(1, 10)), draw(st.integers(1, 3)), draw(st.integers(1, 20))
    mask = draw(masks(lanes))
    relative = None
    if draw(st.booleans()) and (mask.causal or mask.held == mask.size):
        rows = draw(st.integers(0, mask.keys + 3)) if mask.causal else 2 * mask.keys - 1
        bias = random(rows, heads) if draw(st.booleans()) else None
        relative = RelativeKeys(random(rows, heads, width), random(heads, width), random(heads, width), bias)
    query, keys_values = random(mask.size, lanes, heads, width), random(2, mask.keys, lanes, heads, width)
    return query, keys_values, relative, mask


def inputs(query: Tensor, keys_values: Tensor, relative: RelativeKeys | None) -> list[Tensor]:
    parts = () if relative is None else vars(relative).values()
    return [query, keys_values, *(part for part in parts if part is not None)]


def gradients(gathered: Tensor, given: list[Tensor]) -> tuple[Tensor, ...]:
    slope = torch.linspace(-1, 1, gathered.numel(), dtype=gathered.dtype).view_as(gathered)
    return torch.autograd.grad(gathered, given, slope, materialize_grads=True)


def weights_kept(dropped: Dropped, shape: tuple[int, int, int, int]) -> Tensor:
    """(B, H, T, S) The factors of dropout by Philox4x32-10 as its authors wrote it, for one number after another."""
    lanes, heads, queries, keys = shape
    factors = torch.zeros(lanes * heads * queries, keys, dtype=torch.float64)
    for place in range(len(factors)):
        for key in range(keys):
            block, within = divmod(key, 128)
            words = philox((16 * block + within % 16, place, 0, 0), dropped.seed)
            draw = within // 16
            if (words[draw // 2] >> (16 * (draw % 2))) % GRAINS >= dropped.grains:
                factors[place, key] = GRAINS / (GRAINS - dropped.grains)
    return factors.view(shape)


def philox(counter: tuple[int, int, int, int], seed: int) -> tuple[int, ...]:
    word, (first, second) = 2**32, (seed % 2**32, seed >> 32)
    a, b, c, d = counter
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ first, right % word, (left >> 32) ^ d ^ second, left % word
        first, second = (first + 0x9E3779B9) % word, (second + 0xBB67AE85) % word
    return a, b, c, d


def test_the_generator_is_philox() -> None:
    """The published answer for counter and key zero."""
    assert philox((0, 0, 0, 0), 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


@given(problems())
def test_it_equals_the_textbook(
    problem: tuple[Tensor, Tensor, RelativeKeys | None, AttentionMask],
) -> None:
    tensors = problem[:3]
    fast, slow = native_attention.attend(*problem, 0.3)[0], textbook(*problem, 0.3)
    assert_close(fast, slow, **EXACT)
    assert_close(gradients(fast, inputs(*tensors)), gradients(slow, inputs(*tensors)), **EXACT)


class Given(Dropout):
    """Dropout with the factors that it is given."""

    def __init__(self, factors: Tensor) -> None:
        super().__init__(0.5)
        self.factors = factors

    def forward(self, given: Tensor) -> Tensor:
        return given * self.factors


@pytest.mark.parametrize("keys", [5, 140])
def test_dropout_is_that_of_the_drawn_factors(keys: int) -> None:
    torch.manual_seed(0)
    dropped, mask = native_attention.drawn(0.4), AttentionMask(keys - 3, 3, 130)
    relative = RelativeKeys(random(keys, 2, 3), random(2, 3), random(2, 3), random(keys, 2))
    query, keys_values = random(3, 2, 2, 3), random(2, keys, 2, 2, 3)
    fast = native_attention.attend(query, keys_values, relative, mask, 0.3, dropped)[0]
    factors = Given(weights_kept(dropped, (2, 2, 3, keys)))
    slow = textbook(query, keys_values, relative, mask, 0.3, factors)
    assert_close(fast, slow, **EXACT)
    given = inputs(query, keys_values, relative)
    assert_close(gradients(fast, given), gradients(slow, given), **EXACT)


def test_dropout_keeps_the_share_it_should() -> None:
    """Of equal weights, those that are kept add up to one on average, and 15 in 100 are dropped."""
    dropped, mask = native_attention.drawn(0.15), AttentionMask(512, 64, causal=False)
    query, key = torch.zeros(64, 4, 4, 1), torch.zeros(512, 4, 4, 1)
    (gathered,) = native_attention.attend(query, torch.stack([key, key + 1]), None, mask, 1.0, dropped)[:1]
    assert abs(float(gathered.mean()) - 1) < 3e-3
    assert 0.012 < float(gathered.std()) < 0.025  # sqrt(0.15 / 0.85 / 512) = 0.0186


def test_gradients_are_those_of_small_steps() -> None:
    torch.manual_seed(0)
    documents = torch.tensor([[-1, 0, 0, 0, 1, 1], [0] * 6])
    mask, dropped = AttentionMask(2, 4, 5, documents), Dropped(GRAINS // 4, 7)
    relative = RelativeKeys(random(4, 2, 3), random(2, 3), random(2, 3), random(4, 2))

    def attended(query: Tensor, keys_values: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
        return native_attention.attend(query, keys_values, RelativeKeys(*parts), mask, 0.4, dropped)

    given = inputs(random(4, 2, 2, 3), random(2, 6, 2, 2, 3), relative)
    assert torch.autograd.gradcheck(attended, given)


@pytest.mark.usefixtures("one_thread_then_two")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_bit_depends_on_threads_lanes_or_cuts(dtype: torch.dtype) -> None:
    """A segment of three lanes at once, and each lane by itself in pieces, with memory that does not begin together."""
    torch.manual_seed(0)
    held, size, span = 70, 83, 41
    query, keys_values = (
        torch.randn(size, 3, 2, 20, dtype=dtype),
        torch.randn(2, held + size, 3, 2, 20, dtype=dtype),
    )
    relative = RelativeKeys(*(torch.randn(*shape, 2, 20, dtype=dtype) for shape in ((60,), (), ())))
    torch.set_num_threads(2)
    whole = native_attention.attend(query, keys_values, relative, AttentionMask(held, size, span), 0.2)
    torch.set_num_threads(1)
    for lane in range(3):
        begin = 0
        for end, older in ((1, 70), (6, 41), (47, 55), (83, 63)):
            low = held + begin - older
            near = keys_values[:, low : held + end, lane : lane + 1]
            mask = AttentionMask(older, end - begin, span)
            part = native_attention.attend(query[begin:end, lane : lane + 1], near, relative, mask, 0.2)
            for piece, all_of_it in zip(part, whole, strict=True):
                assert torch.equal(piece, all_of_it[begin:end, lane : lane + 1])
            begin = end


@pytest.mark.usefixtures("one_thread_then_two")
def test_no_bit_of_a_gradient_depends_on_threads() -> None:
    torch.manual_seed(0)
    relative = RelativeKeys(*(random(*shape, 2, 16, dtype=torch.float32) for shape in ((90,), (), ())))
    given = inputs(
        random(50, 9, 2, 16, dtype=torch.float32), random(2, 90, 9, 2, 16, dtype=torch.float32), relative
    )
    answers = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        gathered = native_attention.attend(
            *given[:2], relative, AttentionMask(40, 50), 0.25, Dropped(9000, 5)
        )[0]
        answers.append(gradients(gathered, given))
    assert all(torch.equal(one, other) for one, other in zip(answers[0], answers[1], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(answers[0], answers[2], strict=True))


def test_a_padded_text_has_the_bits_of_the_text_alone() -> None:
    torch.manual_seed(0)
    query, keys_values = torch.randn(30, 2, 2, 8), torch.randn(2, 30, 2, 2, 8)
    padding = torch.zeros(2, 1, 1, 30, dtype=torch.bool)
    padding[1, ..., 19:] = True
    mask = AttentionMask(30, 30, padding=padding.expand(-1, -1, 30, -1), causal=False)
    both = native_attention.attend(query, keys_values, None, mask, 0.3)[0]
    alone = AttentionMask(19, 19, causal=False)
    short = native_attention.attend(query[:19, 1:], keys_values[:, :19, 1:], None, alone, 0.3)[0]
    assert torch.equal(both[:19, 1:], short)


def test_a_query_that_sees_nothing_gathers_zeros() -> None:
    query, keys_values = random(3, 1, 1, 4), random(2, 3, 1, 1, 4)
    mask = AttentionMask(0, 3, nearest=1)
    gathered, logs = native_attention.attend(query, keys_values, None, mask, 0.5)
    assert not gathered[0].any()
    assert logs[0].item() == torch.finfo(torch.float64).min
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(gathered, [query, keys_values]))


def test_what_is_not_a_number_is_not_hidden() -> None:
    query, keys_values = torch.randn(3, 1, 1, 4), torch.randn(2, 3, 1, 1, 4)
    query[1] = torch.nan
    gathered, _ = native_attention.attend(query, keys_values, None, AttentionMask(0, 3), 0.5)
    assert gathered[1].isnan().all()
    assert gathered[::2].isfinite().all()


def losses(steps: int = 4) -> list[float]:
    """Of a model that reads on, with documents that begin within a segment, a span and a clamp."""
    torch.manual_seed(0)
    model = build(shape(width=12, heads=2, vocab=7, dropout=0.1)).double().train()
    memory = model.start(lanes=3, reach=Reach(memory=14, span=9, clamp=6))
    optimizer, told = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(steps):
        tokens, starts = torch.randint(7, (3, 10)), torch.rand(3, 10) < 0.1
        hidden, memory = model(tokens, memory, starts=starts)
        loss = model.nats(hidden, tokens).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append(loss.item())
    return told


def test_a_seeded_run_has_the_losses_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = losses()
    assert fast == losses()
    monkeypatch.setenv(native.SWITCH, "0")
    assert_close(fast, losses(), rtol=1e-11, atol=0)


def test_a_restored_generator_drops_the_same() -> None:
    query, keys_values, mask = random(9, 2, 2, 4), random(2, 12, 2, 2, 4), AttentionMask(3, 9)
    before = torch.get_rng_state()
    first, second = (gather(query, keys_values, None, mask, 0.5, Dropout(0.3)) for _ in range(2))
    torch.set_rng_state(before)
    assert torch.equal(first, gather(query, keys_values, None, mask, 0.5, Dropout(0.3)))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("span", [None, 4])
def test_dropping_does_not_leave_native_code(span: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError

    for name in ("textbook", "textbook_by_blocks"):
        monkeypatch.setattr(attention, name, refuse)
    query, keys_values = random(6, 2, 2, 4), random(2, 9, 2, 2, 4)
    gather(query, keys_values, None, AttentionMask(3, 6, span), 0.5, Dropout(0.2))


def test_reading_can_ask_for_the_same_bits_in_short_segments_too() -> None:
    torch.manual_seed(0)
    query, keys_values = torch.randn(20, 2, 2, 8), torch.randn(2, 50, 2, 2, 8)
    with torch.no_grad(), native_attention.invariant():
        whole = gather(query, keys_values, None, AttentionMask(30, 20, 25), 0.3)
        for place in range(20):
            near = keys_values[:, place + 5 : place + 31]
            one = gather(query[place : place + 1], near, None, AttentionMask(25, 1, 25), 0.3)
            assert torch.equal(one, whole[place : place + 1])


@pytest.mark.parametrize("changed", [torch.bfloat16, "switched off"])
def test_what_it_cannot_do_goes_another_way(changed: object, monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys_values = torch.randn(6, 2, 2, 4), torch.randn(2, 9, 2, 2, 4)
    if isinstance(changed, torch.dtype):
        query, keys_values = query.to(changed), keys_values.to(changed)
    else:
        monkeypatch.setenv(native.SWITCH, "0")
    mask = AttentionMask(3, 6)
    assert not native_attention.runs(query, keys_values, None, mask)
    assert_close(gather(query, keys_values, None, mask, 0.5), textbook(query, keys_values, None, mask, 0.5))
