"""Linformer and Nyström: the printed formulas, padding, sharing, and what cannot be causal."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import EncoderConfig, KernelConfig, Seq2SeqConfig, XLConfig
from segue.errors import ConfigError, InputError
from segue.footprint import Largest
from segue.nn import scratch
from segue.nn.attention import Attention, textbook
from segue.nn.encoder import Encoder
from segue.nn.linformer import Linformer, Mixing, textbook_linformer
from segue.nn.mask import AttentionMask
from segue.nn.nystrom import nystrom, pseudo_inverse, textbook_nystrom
from segue.nn.seq2seq import Seq2Seq
from support import VOCAB, some_tokens

SHARES = ("none", "heads", "key-value", "layers")
LONGEST = 12


def random(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


def shape(attention: str = "linformer", **changes: object) -> dict[str, object]:
    small = {"vocab": VOCAB, "width": 8, "heads": 2, "feedforward": 12, "attention": attention, "rank": 5}
    return {**small, **changes}


def encoder(attention: str = "linformer", **changes: object) -> Encoder:
    torch.manual_seed(0)
    config = EncoderConfig(**shape(attention, layers=2, max_positions=LONGEST, **changes))
    return disturbed(Encoder(config).double().eval())


def seq2seq(attention: str = "linformer", **changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    longest = {"max_source": LONGEST} if attention == "linformer" else {}
    config = Seq2SeqConfig(**shape(attention, encoder_layers=2, decoder_layers=2, **longest, **changes))
    return disturbed(Seq2Seq(config).double().eval())


def disturbed(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


def padding(lengths: Tensor, size: int) -> AttentionMask:
    padded = (torch.arange(size) >= lengths[:, None])[:, None, None].expand(-1, -1, size, -1)
    return AttentionMask(size, size, padding=padded, causal=False)


@given(st.sampled_from(SHARES), st.integers(1, 9), st.integers(1, 6), st.booleans(), st.booleans())
def test_the_fast_form_equals_the_printed_one(
    share: str, size: int, rank: int, bias: bool, padded: bool
) -> None:
    """Values and gradients, also of E and F."""
    torch.manual_seed(size)
    config = EncoderConfig(**shape(share=share, rank=rank, max_positions=LONGEST, layers=3))
    attention, linformer = Attention(config, bias=bias).double(), Linformer(config, 3, LONGEST).double()
    mixing, hidden = linformer.layer(2, size), random(size, 2, 8)
    mask = padding(torch.tensor([size, (size + 1) // 2]), size)
    mask = mask if padded else AttentionMask(size, size, causal=False)
    given = [hidden, linformer.matrices, *attention.parameters()]

    def results(*, fast: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        if fast:
            out = mixing.attend(attention, hidden, mask)
        else:
            query = attention.query(hidden).unflatten(-1, (2, -1))
            keys_values = attention.project(hidden)
            gathered = textbook_linformer(
                query, keys_values, mixing.matrices, attention.scale, mask.padded_keys
            )
            out = attention.out(gathered.flatten(2))
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
        return out, torch.autograd.grad((out * weight).sum(), given, retain_graph=True)

    assert_close(results(fast=True), results(fast=False))


@given(st.integers(1, 9), st.booleans())
def test_matrices_of_one_and_nothing_else_are_full_attention(size: int, padded: bool) -> None:
    """For k = S and E = F = I. Keys of padding are not hidden here, but zero; they share in the softmax."""
    config = EncoderConfig(**shape(rank=size, max_positions=LONGEST))
    attention, hidden = Attention(config, bias=True).double(), random(size, 2, 8)
    keys_values = attention.project(hidden)
    lengths = torch.tensor([size, max(1, size - 2)])
    mask = padding(lengths, size) if padded else AttentionMask(size, size, causal=False)
    out = Mixing(torch.eye(size, dtype=torch.float64)[None, None]).attend(attention, hidden, mask)
    query = attention.query(hidden).unflatten(-1, (2, -1))
    if padded:
        keys_values = keys_values.masked_fill(mask.padded_keys.T[..., None, None], 0)
    everything = AttentionMask(size, size, causal=False)
    wanted = textbook(query, keys_values, None, everything, attention.scale)
    assert_close(out, attention.out(wanted.flatten(2)))


cached_encoder, cached_seq2seq = cache(encoder), cache(seq2seq)
LOW_RANK = [*[{"share": share} for share in SHARES], {"attention": "nystrom"}]


@pytest.mark.parametrize("changes", LOW_RANK, ids=str)
@given(length=st.integers(1, 9), more=st.integers(0, 3))
def test_padding_changes_nothing(changes: dict[str, str], length: int, more: int) -> None:
    source, target = some_tokens(1, length), some_tokens(1, 4, 1)
    both = torch.cat([source, some_tokens(1, more, 2)], dim=1).expand(2, -1)
    model = cached_seq2seq(**changes)
    wanted, _ = model(target, model.start(source))
    hidden, _ = model(target.expand(2, -1), model.start(both, torch.tensor([length, 0])))
    assert_close(hidden[:1], wanted)
    assert hidden.isfinite().all()
    texts, mask = cached_encoder(**changes), torch.arange(length + more) < torch.tensor([[length], [0]])
    output = texts(both, mask).last_hidden_state
    assert_close(output[:1, :length], texts(source).last_hidden_state)
    assert output.isfinite().all()


@pytest.mark.parametrize("attention", ["linformer", "nystrom"])
def test_neighbours_in_the_batch_change_nothing(attention: str) -> None:
    model, ids = encoder(attention), some_tokens(4, 9)
    alone = torch.cat([model(row[None]).last_hidden_state for row in ids])
    assert_close(model(ids).last_hidden_state, alone)


def test_a_hole_in_the_mask_is_hidden_as_well() -> None:
    """BERT's mask may hide tokens inside a text."""
    ids, mask = some_tokens(1, 7), torch.tensor([[1, 1, 0, 1, 1, 0, 1]]).bool()
    for attention in ("linformer", "nystrom"):
        model = encoder(attention)
        other = torch.where(mask, ids, (ids + 1) % VOCAB)
        assert_close(model(other, mask).last_hidden_state[mask], model(ids, mask).last_hidden_state[mask])


def test_the_published_numbers_of_matrices() -> None:
    layers, heads, rank = 3, 4, 5
    counts = {}
    for share in SHARES:
        config = EncoderConfig(
            **shape(share=share, layers=layers, heads=heads, rank=rank, max_positions=LONGEST)
        )
        matrices = Linformer(config, layers, LONGEST).matrices
        assert matrices.shape[-2:] == (rank, LONGEST)
        assert float(matrices.detach().abs().max()) <= rank**-0.5
        counts[share] = matrices[..., 0, 0].numel()
        with_them, without = (
            Encoder(config),
            Encoder(
                EncoderConfig(**shape("full", rank=0, layers=layers, heads=heads, max_positions=LONGEST))
            ),
        )
        more = sum(weight.numel() for weight in with_them.parameters()) - sum(
            weight.numel() for weight in without.parameters()
        )
        assert more == counts[share] * rank * LONGEST
    assert counts == {"none": 2 * layers * heads, "heads": 2 * layers, "key-value": layers, "layers": 1}


@pytest.mark.parametrize("share", SHARES)
def test_what_is_shared_learns_from_everyone(share: str) -> None:
    """Each layer has its own part of the matrices, or all have one: the gradient shows which were used."""
    model = encoder(share=share)
    model(some_tokens(1, 7)).last_hidden_state.square().sum().backward()
    gradient = model.low_rank.matrices.grad
    assert gradient is not None
    assert not gradient[..., 7:].any()  # columns behind the text
    assert (gradient[..., :7].abs().amax(dim=(-2, -1)) > 0).all()


def test_the_error_of_random_mixtures_falls_with_the_rank() -> None:
    """In the mean over draws, for small scores.

    With E = F of independent entries of mean and variance 1 / S, the weights of k mixtures are near 1 + q E K, and the
    mean over draws is full attention to first order in the scores.
    """
    torch.manual_seed(0)
    size, errors = 32, []
    query, keys_values = 0.3 * torch.randn(size, 1, 1, 8), 0.3 * torch.randn(2, size, 1, 1, 8)
    wanted = textbook(query, keys_values, None, AttentionMask(size, size, causal=False), 1.0)
    for rank in (2, 8, 32, 128, 512):
        draws = [1 / size + torch.randn(1, 1, rank, size) / size**0.5 for _ in range(60)]
        apart = [textbook_linformer(query, keys_values, draw, 1.0) - wanted for draw in draws]
        errors.append(sum(float(one.norm()) for one in apart) / len(apart))
    assert all(later < 0.6 * earlier for earlier, later in pairwise(errors))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 100))
def test_nystrom_is_the_printed_formula(landmarks: int, neighbours: int, seed: int) -> None:
    torch.manual_seed(seed)
    size = landmarks * neighbours
    query, keys_values = 2 * random(size, 2, 2, 4), 2 * random(2, size, 2, 2, 4)
    out = nystrom(query, keys_values, landmarks, 0.5, steps=60)
    for lane in range(2):
        for head in range(2):
            key, value = keys_values[:, :, lane, head]
            wanted = textbook_nystrom(0.5 * query[:, lane, head], key, value, landmarks)
            assert_close(out[:, lane, head], wanted, rtol=1e-5, atol=1e-5)


def test_a_landmark_for_each_token_is_full_attention() -> None:
    torch.manual_seed(0)
    query, keys_values = random(6, 2, 2, 4), random(2, 6, 2, 2, 4)
    wanted = textbook(query, keys_values, None, AttentionMask(6, 6, causal=False), 0.5)
    for rank in (6, 99):
        assert_close(nystrom(query, keys_values, rank, 0.5, steps=60), wanted)
    assert not torch.allclose(nystrom(query, keys_values, 3, 0.5, steps=60), wanted, atol=1e-3)


def test_pseudo_inverses_are_of_each_matrix_by_itself() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(3, 5, 5, dtype=torch.float64).softmax(dim=-1)
    alone = torch.stack([pseudo_inverse(one[None])[0] for one in matrices])
    assert_close(pseudo_inverse(matrices), alone)
    assert_close(pseudo_inverse(matrices, steps=60), torch.linalg.pinv(matrices))


@pytest.mark.parametrize("changes", LOW_RANK, ids=str)
def test_room_grows_with_the_length_alone(changes: dict[str, str]) -> None:
    def largest_made(length: int) -> int:
        config = shape(**changes, width=4, layers=2, max_positions=800, rank=4, feedforward=4)
        model = Encoder(EncoderConfig(**config)).train()
        scratch.BUFFERS.__dict__.clear()
        with Largest() as largest:
            model(torch.arange(length)[None] % VOCAB).last_hidden_state.sum().backward()
        return largest.elements

    short, long = largest_made(400), largest_made(800)
    assert long < 2.1 * short
    assert long < 800 * 800 / 4


def test_dropout_drops_weights_of_mixtures() -> None:
    model, ids = encoder(attention_dropout=0.5).train(), some_tokens(2, 7)
    assert not torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    assert torch.equal(model.eval()(ids).last_hidden_state, model(ids).last_hidden_state)


def test_longer_texts_than_the_matrices_have_columns_are_refused() -> None:
    with pytest.raises(InputError, match="13 tokens are more than the 12 of max_source"):
        seq2seq().start(some_tokens(1, 13))
    with pytest.raises(InputError, match="13 tokens are more than the 12 positions"):
        encoder()(some_tokens(1, 13))


def test_a_causal_model_is_told_why_not() -> None:
    sentences = {
        "linformer": "each of its rows mixes all times",
        "nystrom": "each of its landmarks is a mean",
    }
    for kind in (XLConfig, KernelConfig):
        for attention, sentence in sentences.items():
            with pytest.raises(
                ConfigError, match=f"{attention}' cannot be causal: {sentence}.* hide the future"
            ):
                kind(vocab=VOCAB, width=8, heads=2, attention=attention)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rank": 0}, "'linformer' needs a rank of 1 or more; found rank=0"),
        ({"attention": "full"}, "'full' needs no rank; found rank=5"),
        ({"attention": "full", "rank": 0, "share": "heads"}, "share 'heads' is linformer's"),
        ({"rank": 13, "max_positions": 12, "max_source": 12}, "rank 13 exceeds max_[a-z]+ 12"),
        (
            {"attention": "nystrom", "attention_dropout": 0.1},
            "nystrom has no weights of single tokens to drop",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], reason: str) -> None:
    for kind, other in ((EncoderConfig, "max_source"), (Seq2SeqConfig, "max_positions")):
        values = shape(**changes)
        values.pop(other, None)
        with pytest.raises(ConfigError, match=reason):
            kind(**values)


def test_a_translator_needs_a_longest_source_and_places_that_mixtures_keep() -> None:
    for changes, reason in (
        ({}, "'linformer' needs a max_source"),
        ({"max_source": 12, "attention": "nystrom"}, "'nystrom' needs no max_source"),
        ({"max_source": 12, "encoding": "xl"}, "mixes keys of all places, which have no distance to a query"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Seq2SeqConfig(**shape(**changes))


def test_an_output_bias_is_an_option() -> None:
    source, target = some_tokens(2, 5), some_tokens(2, 4, 1)
    plain, biased = (seq2seq("full", rank=0, output_bias=on) for on in (False, True))
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (plain, biased)]
    assert counts[1] - counts[0] == VOCAB
    hidden, _ = biased(target, biased.start(source))
    with torch.no_grad():
        biased.vocabulary.biases[0].zero_()
    without = biased.logprobs(hidden)
    with torch.no_grad():
        biased.vocabulary.biases[0].copy_(torch.arange(VOCAB))
    assert_close(biased.logprobs(hidden), (without + torch.arange(VOCAB)).log_softmax(dim=-1))
