"""Kernel attention: the printed formula, and the laws of reading with a state of constant size."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import KernelConfig, Reach, Reading
from segue.errors import ConfigError, InputError
from segue.nn import kernel_chunk
from segue.nn.kernel import KernelBlock, KernelModel
from segue.nn.kernel_chunk import textbook_kernel
from segue.nn.layout import checked_layout
from segue.nn.performer import orthogonal, performer_chunk, performer_exponents
from support import VOCAB, cuts, read_in_pieces, some_tokens

LENGTH, REACH = 14, Reach(memory=1)


def config(features: str = "elu", **changes: object) -> KernelConfig:
    small = {"vocab": VOCAB, "width": 8, "layers": 2, "heads": 2, "feedforward": 12, "features": features}
    more = {"random_features": 6} if features == "performer" else {}
    return KernelConfig(**{**small, **more, **changes})


def build(features: str = "elu", **changes: object) -> KernelModel:
    torch.manual_seed(0)
    model = KernelModel(config(features, init=0.4, **changes)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


FEATURES = pytest.mark.parametrize("features", ["elu", "performer"])


@pytest.fixture(autouse=True)
def chunks_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_chunk, "CHUNK", 4)


@FEATURES
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_it_is_the_printed_formula(features: str, norm: str) -> None:
    model, tokens = build(features, layers=1, norm=norm, encoding="none"), some_tokens(1, LENGTH)
    block = model.blocks[0]
    assert isinstance(block, KernelBlock)
    hidden = model.vocabulary.embed(tokens)
    normed = block.attention_norm(hidden) if norm == "pre" else hidden
    query, key, value = block._projected(normed)
    key = key.exp() if features == "performer" else key
    heads = [textbook_kernel(query[0, :, h], key[0, :, h], value[0, :, h, :-1]) for h in range(2)]
    added = hidden + block.attention.out(torch.cat(heads, dim=-1))
    hidden = added if norm == "pre" else block.attention_norm(added)
    fed = hidden + block.feed_forward(block.feed_forward_norm(hidden) if norm == "pre" else hidden)
    expected = fed if norm == "pre" else block.feed_forward_norm(fed)
    assert_close(model(tokens, model.start(reach=REACH))[0], expected)


@FEATURES
@given(places=cuts(LENGTH))
def test_where_the_seams_fall_makes_no_difference(features: str, places: list[int]) -> None:
    for reader in (build(features), build(features).frozen()):
        tokens = some_tokens(2, LENGTH)
        begin = reader.start(lanes=2, reach=REACH)
        whole, after = reader(tokens, begin)
        pieces, pieced = read_in_pieces(reader, tokens, begin, places)
        assert_close(pieces, whole)
        assert_close(pieced.rows, after.rows)
        assert pieced.seen.tolist() == [LENGTH] * 2


@FEATURES
@given(change=st.integers(1, LENGTH - 1))
def test_a_later_token_never_changes_an_earlier_output(features: str, change: int) -> None:
    model, tokens = build(features), some_tokens(1, LENGTH)
    other = tokens.clone()
    other[:, change:] = (other[:, change:] + 1) % VOCAB
    first, second = (model(some, model.start(reach=REACH))[0] for some in (tokens, other))
    # The level of a Performer's keys is that of the whole chunk: it cancels, but for the last bits.
    exactly = {"rtol": 0, "atol": 0} if features == "elu" else {}
    assert_close(second[:, :change], first[:, :change], **exactly)
    assert not torch.allclose(second[:, change:], first[:, change:])


def alone(model: KernelModel, document: Tensor) -> Tensor:
    hidden: Tensor = model(document[None], model.start(reach=REACH))[0][0]
    return hidden


@FEATURES
@given(data=st.data())
def test_documents_and_padding_anywhere_in_any_lane(features: str, data: st.DataObject) -> None:
    model = build(features)
    lanes = data.draw(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=3))
    longest = max(map(sum, lanes))
    tokens = some_tokens(len(lanes), longest)
    starts = torch.zeros(len(lanes), longest, dtype=torch.bool)
    for lane, lengths in enumerate(lanes):
        for place in list(itertools.accumulate(lengths))[:-1]:
            starts[lane, place] = True
    cut = data.draw(st.integers(1, longest))
    memory, read = model.start(lanes=len(lanes), reach=REACH), []
    for part in (slice(0, cut), slice(cut, longest)):
        if part.start == part.stop:
            continue
        size = part.stop - part.start
        real = torch.tensor([max(0, min(size, sum(lengths) - part.start)) for lengths in lanes])
        hidden, memory = model(tokens[:, part], memory, starts=starts[:, part], lengths=real)
        read.append(hidden)
    hidden = torch.cat(read, dim=1)
    for lane, lengths in enumerate(lanes):
        documents = tokens[lane, : sum(lengths)].split(lengths)
        assert_close(hidden[lane, : sum(lengths)], torch.cat([alone(model, one) for one in documents]))
        assert not hidden[lane, sum(lengths) :].any()
    assert memory.seen.tolist() == [lengths[-1] for lengths in lanes]


@FEATURES
def test_a_memory_is_a_value_of_constant_size(features: str) -> None:
    model = build(features).frozen()
    _, parent = model(some_tokens(2, 5), model.start(lanes=2, reach=REACH))
    before = [row.clone() for row in parent.rows]
    hidden, child = model(some_tokens(2, 3, seed=1), parent)
    assert_close(model(some_tokens(2, 3, seed=1), parent)[0], hidden, rtol=0, atol=0)
    assert_close(list(parent.rows), before, rtol=0, atol=0)
    assert [row.shape for row in child.rows] == [row.shape for row in parent.rows]
    swapped = parent.join([child.select([1]), parent.select([0])])
    more = some_tokens(2, 4, seed=2)
    both, _ = model(more, swapped)
    assert_close(both[:1], model(more[:1], child.select([1]))[0])
    assert_close(both[1:], model(more[1:], parent.select([0]))[0])
    rebuilt = type(parent).from_tensors(parent.tensors(), parent.reach)
    assert_close(model(more, rebuilt)[0], model(more, parent)[0], rtol=0, atol=0)


def test_without_memory_segments_are_isolated() -> None:
    model, tokens = build(), some_tokens(1, 6)
    reach = Reach(memory=0, positions="restart")
    _, memory = model(tokens, model.start(reach=reach))
    assert_close(model(tokens, memory)[0], model(tokens, model.start(reach=reach))[0], rtol=0, atol=0)


def test_positions_that_go_on_know_how_much_was_read() -> None:
    """So parts of a stream cannot be read side by side, not even as isolated segments."""
    onward, restarting = (Reach(memory=0, positions=kind) for kind in ("onward", "restart"))
    assert build(encoding="sinusoidal").looks_back(Reading(segment=4, reach=onward)) is None
    assert build(encoding="sinusoidal").looks_back(Reading(segment=4, reach=restarting)) == 4
    assert build(encoding="none").looks_back(Reading(segment=4, reach=onward)) == 4


def test_performers_error_falls_with_the_number_of_features() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 32, 8, dtype=torch.float64)
    query, key = 0.35 * query, 0.35 * key
    exact = (query @ key.T).masked_fill(~torch.ones(32, 32).tril().bool(), -torch.inf).softmax(dim=-1) @ value
    errors = []
    for count in (8, 64, 512):
        tries = []
        for _ in range(20):
            rows = orthogonal(torch.randn(count, 8, dtype=torch.float64))
            features = [performer_exponents(vectors, rows).exp() for vectors in (query, key)]
            tries.append((textbook_kernel(*features, value) - exact).square().mean())
        errors.append(float(torch.stack(tries).mean()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_random_features_are_unbiased_and_better_if_orthogonal() -> None:
    torch.manual_seed(0)
    one, other = 0.3 * torch.randn(2, 64, 6, dtype=torch.float64)
    exact, errors = (one * other).sum(dim=-1).exp(), []
    drawn = torch.randn(4000, 6, 6, dtype=torch.float64)
    for rows in (drawn, torch.stack([orthogonal(block) for block in drawn])):
        features = [performer_exponents(vectors, rows.flatten(0, 1)).exp() for vectors in (one, other)]
        estimates = (features[0] * features[1]).unflatten(-1, (4000, 6)).mean(dim=-1) / exact[:, None]
        assert ((estimates.mean(dim=-1) - 1).abs() < 5 * estimates.std(dim=-1) / 4000**0.5).all()
        errors.append(float((estimates - 1).square().mean()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize("length", [0.01, 1.0, 2.0, 50.0])
def test_long_and_short_keys_stay_in_the_range_of_floats(length: float) -> None:
    """The oracle works with logarithms. Beyond some 80 below the largest of a chunk, a key counts nothing."""
    model, tokens = build("performer", layers=1, encoding="none").float(), some_tokens(2, LENGTH)
    block = model.blocks[0]
    assert isinstance(block, KernelBlock)
    with torch.no_grad():
        block.attention.key_value.weight.mul_(length)
    whole, memory = model(tokens, model.start(lanes=2, reach=REACH))
    pieces, _ = read_in_pieces(model, tokens, model.start(lanes=2, reach=REACH), range(1, LENGTH))
    assert whole.isfinite().all()
    assert all(row.isfinite().all() for row in memory.rows)
    if length > 2:
        return
    exact = model.double()
    query, key, value = block._projected(exact.vocabulary.embed(tokens))
    pairs = query.log()[:, :, None] + key[:, None]  # (B, T, S, H, F)
    causal = torch.ones(LENGTH, LENGTH).tril().bool()[..., None]
    weights = pairs.logsumexp(dim=-1).masked_fill(~causal, -torch.inf).softmax(dim=2)
    expected = torch.einsum("btsh,bshd->bthd", weights, value[..., :-1])
    float_query, float_key, float_value = (part.float() for part in (query, key, value))
    state = memory.state(0).float() * 0
    (mask,) = kernel_chunk.chunk_masks(checked_layout(tokens, None, None), tokens.device)[:1]
    gathered, _ = performer_chunk(float_query[:, :4], float_key[:, :4], float_value[:, :4], state, mask)
    assert_close(gathered.double(), expected[:, :4], rtol=2e-3, atol=1e-3)
    assert_close(pieces, whole, rtol=1e-3, atol=1e-3)


@given(st.integers(1, 20), st.integers(1, 6))
def test_directions_are_orthogonal_in_blocks_and_keep_their_lengths(count: int, width: int) -> None:
    drawn = torch.randn(count, width, dtype=torch.float64)
    rows = orthogonal(drawn)
    assert_close(rows.norm(dim=1), drawn.norm(dim=1))
    for block in rows.split(width):
        products = block @ block.T
        assert_close(products, products.diagonal().diag_embed(), rtol=0, atol=1e-9)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ConfigError, match="'performer' need random_features of 1 or more; found 0"):
        config("performer", random_features=0)
    with pytest.raises(ConfigError, match="'elu' need no random_features; found 3"):
        config(random_features=3)
    with pytest.raises(ConfigError, match="no weights to drop"):
        config(attention_dropout=0.1)
    with pytest.raises(InputError, match="keeps no keys"):
        build().start(reach=Reach(memory=1, span=3))
    with pytest.raises(InputError, match="a KernelModel has no such engine"):
        build().frozen(int8=True)
