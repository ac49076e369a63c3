"""Windows to both sides and global tokens: the masked textbook's numbers, at a cost that grows with the window."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from segue.config import EncoderConfig, Seq2SeqConfig, UniversalSeq2SeqConfig, XLConfig
from segue.errors import ConfigError
from segue.footprint import Largest
from segue.nn import blockwise, scratch
from segue.nn.attention import gather, textbook, textbook_in_windows
from segue.nn.dropout import Dropout
from segue.nn.encoder import Encoder
from segue.nn.mask import AttentionMask
from segue.nn.positions import RelativeKeys
from segue.nn.seq2seq import Seq2Seq
from segue.nn.universal_seq2seq import UniversalSeq2Seq
from support import VOCAB, some_tokens


@pytest.fixture(autouse=True)
def blocks_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "QUERY_BLOCK", 3)


@pytest.fixture(params=[0, 2**20], ids=["computed again", "kept"])
def saved(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(blockwise, "SAVED_WEIGHTS", request.param)


def random(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


@st.composite
def masks(draw: st.DrawFn, *, padded: bool = True) -> AttentionMask:
    size = draw(st.integers(1, 11))
    window, global_tokens = 2 * draw(st.integers(1, size)), draw(st.integers(0, size + 1))
    padding = None
    if padded and draw(st.booleans()):
        lengths = torch.tensor([draw(st.integers(0, size)) for _ in range(2)])
        padding = (torch.arange(size) >= lengths[:, None])[:, None, None].expand(-1, -1, size, -1)
    return AttentionMask(
        size, size, padding=padding, causal=False, window=window, global_tokens=global_tokens
    )


def by_definition(mask: AttentionMask) -> Tensor:
    """(2, 1, S, S) True where a key is visible, pair by pair."""
    visible = torch.zeros(2, 1, mask.size, mask.size, dtype=torch.bool)
    assert mask.window is not None
    for lane in range(2):
        for query in range(mask.size):
            for key in range(mask.size):
                near = abs(query - key) <= mask.window / 2 or min(query, key) < mask.global_tokens
                padded = mask.padding is not None and bool(mask.padding[lane, 0, 0, key])
                visible[lane, 0, query, key] = (near and not padded) or query == key
    return visible


@given(masks())
def test_the_mask_is_its_definition(mask: AttentionMask) -> None:
    assert_close(mask.dense(torch.device("cpu")).expand(2, 1, -1, -1), by_definition(mask))


@pytest.mark.usefixtures("saved")
@given(masks(), st.sampled_from(["none", "rows", "rows and biases"]), st.integers(0, 1000))
def test_it_equals_the_masked_textbook(mask: AttentionMask, kind: str, seed: int) -> None:
    """Values and gradients."""
    torch.manual_seed(seed)
    size = mask.size
    query, keys_values = random(size, 2, 2, 4), random(2, size, 2, 2, 4)
    relative, given = None, [query, keys_values]
    if kind != "none":
        bias = random(2 * size - 1, 2) if kind == "rows and biases" else None
        relative = RelativeKeys(random(2 * size - 1, 2, 4), random(2, 4), random(2, 4), bias)
        given += [relative.rows, relative.content_bias, relative.position_bias]
        given += [] if bias is None else [bias]
    weight = torch.linspace(-1, 1, query.numel(), dtype=torch.float64).view_as(query)
    results = []
    for way in (textbook, gather, textbook_in_windows):
        out = way(query, keys_values, relative, mask, 0.5)
        results.append((out, torch.autograd.grad((out * weight).sum(), given)))
    assert results[0][0].isfinite().all()
    assert_close(results[1], results[0])
    assert_close(results[2], results[0])
    with torch.no_grad():
        assert_close(gather(query, keys_values, relative, mask, 0.5), results[0][0])


def encoder(**changes: object) -> Encoder:
    torch.manual_seed(0)
    shape = {"vocab": VOCAB, "width": 8, "layers": 2, "heads": 2, "feedforward": 12, "max_positions": 40}
    model = Encoder(EncoderConfig(**{**shape, **changes})).double().eval()
    return disturbed(model)


def seq2seq(**changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    shape = {
        "vocab": VOCAB,
        "width": 8,
        "heads": 2,
        "feedforward": 12,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    return disturbed(Seq2Seq(Seq2SeqConfig(**{**shape, **changes})).double().eval())


def disturbed(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


cached_encoder, cached_seq2seq = cache(encoder), cache(seq2seq)


@pytest.mark.parametrize("global_tokens", [0, 2])
@pytest.mark.parametrize("encoding", ["sinusoidal", "xl"])
def test_a_window_of_everything_is_full_attention(encoding: str, global_tokens: int) -> None:
    ids, lengths = some_tokens(2, 9), torch.tensor([9, 4])
    mask = torch.arange(9) < lengths[:, None]
    wide = {"window": 16, "global_tokens": global_tokens}
    full, windowed = encoder()(ids, mask), encoder(**wide)(ids, mask)
    assert_close(windowed.last_hidden_state[mask], full.last_hidden_state[mask])
    assert_close(
        seq2seq(encoding=encoding, **wide).encode(ids, lengths)[0],
        seq2seq(encoding=encoding).encode(ids, lengths)[0],
    )
    narrow = encoder(window=2)(ids, mask)
    assert not torch.allclose(narrow.last_hidden_state[mask], full.last_hidden_state[mask])


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 3), st.sampled_from(["sinusoidal", "xl"]))
def test_padding_changes_nothing(length: int, more: int, global_tokens: int, encoding: str) -> None:
    source, target = some_tokens(1, length), some_tokens(1, 4, 1)
    model = cached_seq2seq(encoding=encoding, window=4, global_tokens=global_tokens)
    rubbish = torch.cat([source, some_tokens(1, more, 2)], dim=1)
    wanted, _ = model(target, model.start(source))
    both = torch.cat([rubbish, rubbish.flip(1)])
    hidden, _ = model(target.expand(2, -1), model.start(both, torch.tensor([length, 0])))
    assert_close(hidden[:1], wanted)
    assert hidden.isfinite().all()
    texts = cached_encoder(window=4, global_tokens=global_tokens)
    mask = (torch.arange(length + more) < length)[None].expand(2, -1) & torch.tensor([[True], [False]])
    output = texts(both, mask)
    assert_close(output.last_hidden_state[:1, :length], texts(source).last_hidden_state)
    assert output.last_hidden_state.isfinite().all()


@pytest.mark.parametrize(("layers", "global_tokens"), [(1, 0), (2, 0), (3, 0), (1, 2)])
def test_no_gradient_comes_from_outside_the_sight(layers: int, global_tokens: int) -> None:
    """N layers see N w / 2 tokens to each side; through a global token, everything after two layers."""
    model = encoder(layers=layers, window=4, global_tokens=global_tokens)
    ids, place = torch.arange(21)[None] % VOCAB, 12
    hidden = (model.words(ids) + model.places(torch.arange(21))).detach().transpose(0, 1).requires_grad_()
    mask = AttentionMask(21, 21, causal=False, window=4, global_tokens=global_tokens)
    out = hidden
    for block in model.blocks:
        out = block(out, out[:0], None, mask)
    reached = torch.autograd.grad(out[place].square().sum(), hidden)[0].abs().sum(dim=(1, 2)) > 0
    near = (torch.arange(21) - place).abs() <= 2 * layers
    near[:global_tokens] = True
    assert_close(reached, near)


def test_a_decoders_span_hides_what_is_farther() -> None:
    source, target = some_tokens(2, 5), some_tokens(2, 9, 1)
    full, wide, narrow = seq2seq(), seq2seq(decoder_span=9), seq2seq(decoder_span=3)
    assert_close(wide(target, wide.start(source))[0], full(target, full.start(source))[0])
    wanted, _ = narrow(target, narrow.start(source))
    other = torch.cat([some_tokens(2, 4, 7), target[:, 4:]], dim=1)
    output, _ = narrow(other, narrow.start(source))
    assert_close(output[:, 8:], wanted[:, 8:])  # two layers see 2 (span - 1) back
    assert not torch.allclose(output[:, 7:8], wanted[:, 7:8])


def universal(**changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    config = UniversalSeq2SeqConfig(vocab=VOCAB, width=8, heads=2, feedforward=12, steps=2, **changes)
    return disturbed(UniversalSeq2Seq(config).double().eval())


@given(
    st.sampled_from([(cached_seq2seq, {"window": 2, "global_tokens": 1}), (cache(universal), {})]),
    st.sampled_from([1, 3]),
    st.lists(st.integers(1, 8), unique=True, max_size=4).map(sorted),
)
def test_where_a_target_is_cut_makes_no_difference(kind: tuple[Any, Any], span: int, cuts: list[int]) -> None:
    build, changes = kind
    model = build(decoder_span=span, output_bias=True, **changes)
    source, target, lengths = some_tokens(2, 5), some_tokens(2, 9, 1), torch.tensor([5, 2])
    with torch.no_grad():
        wanted, _ = model(target, model.start(source, lengths))
        memory, pieces = model.start(source, lengths), []
        for piece in torch.tensor_split(target, cuts, dim=1):
            hidden, memory = model(piece, memory)
            pieces.append(hidden)
    assert_close(torch.cat(pieces, dim=1), wanted)
    assert int(memory.lengths.max()) == span - 1  # constant, however long the target


@pytest.mark.parametrize("changes", [{}, {"attention_dropout": 0.1}, {"global_tokens": 2}], ids=str)
def test_room_grows_with_the_length_alone(changes: dict[str, object]) -> None:
    def largest_made(length: int) -> int:
        model = encoder(width=4, heads=1, feedforward=4, window=4, max_positions=200, **changes).train()
        ids = torch.arange(2 * length).view(2, length) % 3
        mask = torch.arange(length) < torch.tensor([[length], [length // 2]])
        scratch.BUFFERS.__dict__.clear()  # room that was made before would not be seen
        with Largest() as largest:
            model(ids, mask).last_hidden_state.sum().backward()
        return largest.elements

    short, long = largest_made(100), largest_made(200)
    assert long < 2.1 * short
    assert long < 200 * 200 / 4


class Made(TorchDispatchMode):
    """Counts the elements of all tensors that are made, in backward passes too."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.elements += sum(one.numel() for one in tree_leaves(made) if isinstance(one, Tensor))
        return made


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("way", [gather, textbook_in_windows])
@pytest.mark.parametrize("global_tokens", [0, 2])
def test_work_grows_with_the_length_alone(way: Any, global_tokens: int, relative: bool) -> None:
    """A slice for each block would not do: its gradient is as long as the whole text."""

    def all_made(size: int) -> int:
        mask = AttentionMask(size, size, causal=False, window=4, global_tokens=global_tokens)
        query, keys_values, rows = random(size, 1, 1, 2), random(2, size, 1, 1, 2), random(2 * size - 1, 1, 2)
        distances = RelativeKeys(rows, random(1, 2), random(1, 2)) if relative else None
        scratch.BUFFERS.__dict__.clear()
        with Made() as made:
            way(query, keys_values, distances, mask, 1.0).sum().backward()
        return made.elements

    assert all_made(160) < 2.2 * all_made(80)


def test_dropout_drops_weights() -> None:
    mask = AttentionMask(8, 8, causal=False, window=4, global_tokens=1)
    query, keys_values, dropout = random(8, 1, 1, 2), torch.ones(2, 8, 1, 1, 2).double(), Dropout(0.5).train()
    torch.manual_seed(0)
    dropped = gather(query, keys_values, None, mask, 1.0, dropout)
    assert not torch.allclose(dropped, torch.ones_like(dropped))
    assert_close(gather(query, keys_values, None, mask, 1.0, dropout.eval()), torch.ones_like(dropped))


def test_autocast_goes_by_blocks_too() -> None:
    model = encoder(window=4).float()
    ids = some_tokens(2, 11)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(ids).last_hidden_state
    assert_close(output, model(ids).last_hidden_state, atol=0.3, rtol=0)


def test_what_makes_no_sense_is_refused() -> None:
    for changes, reason in (
        ({"window": 5}, "window counts both sides, so it is even; found 5: use 6"),
        ({"global_tokens": 1}, "global_tokens need a window: without one every token sees all"),
        ({"window": 4, "attention": "nystrom", "rank": 2}, "'nystrom' has no window; use one of the two"),
    ):
        for kind in (EncoderConfig, Seq2SeqConfig):
            with pytest.raises(ConfigError, match=reason):
                kind(vocab=VOCAB, width=8, heads=2, **changes)
    with pytest.raises(ConfigError, match="XLConfig has no 'window'"):
        XLConfig(vocab=VOCAB, width=8, heads=2, window=4)


def test_a_mask_of_a_window_that_is_replaced_stays_whole_for_the_target() -> None:
    """Cross-attention sees the whole source."""
    model = seq2seq(window=2, global_tokens=1)
    _, mask = model.encode(some_tokens(1, 6))
    assert replace(mask, size=1).dense(torch.device("cpu")).all()
