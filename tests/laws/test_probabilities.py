"""The laws of the vocabulary ends: probabilities sum to one, and nats are their logarithms in token order."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from segue.config import XLConfig
from support import VOCAB, build, shape, some_tokens


@st.composite
def vocabularies(draw: st.DrawFn) -> XLConfig:
    cutoffs = draw(st.lists(st.integers(1, VOCAB - 1), unique=True, max_size=3).map(sorted))
    return shape(
        width=8,
        cutoffs=cutoffs,
        embedding=draw(st.sampled_from([8, 11])),
        divisor=draw(st.sampled_from([1, 2])),
        tied=draw(st.booleans()),
        tied_projections=draw(st.booleans()),
        head_projection=draw(st.booleans()),
    )


@given(vocabularies())
def test_probabilities_sum_to_one_and_nats_are_their_logarithms(config: XLConfig) -> None:
    model = build(config)
    hidden, targets = torch.randn(2, 20, config.width, dtype=torch.float64), some_tokens(2, 20)
    logprobs = model.logprobs(hidden)
    assert_close(logprobs.exp().sum(dim=-1), torch.ones(2, 20, dtype=torch.float64))
    assert_close(model.nats(hidden, targets), -logprobs.gather(2, targets[..., None]).squeeze(2))


@given(vocabularies())
def test_a_cluster_without_tokens_still_gets_a_gradient(config: XLConfig) -> None:
    model = build(config)
    zeros = torch.zeros(1, 3, dtype=torch.int64)
    hidden = model.vocabulary.embed(zeros)
    model.nats(hidden, zeros).sum().backward()
    grads = {name: weight.grad for name, weight in model.vocabulary.named_parameters()}
    assert [name for name, grad in grads.items() if grad is None] == []


@given(vocabularies(), st.integers(0, 100))
def test_every_cluster_embeds_its_own_tokens(config: XLConfig, seed: int) -> None:
    """Embedding all tokens at once equals embedding each alone, in any order."""
    vocabulary = build(config).vocabulary
    tokens = some_tokens(2, 9, seed)
    singly = torch.stack([vocabulary.embed(token[None])[0] for token in tokens.flatten()])
    assert_close(vocabulary.embed(tokens).flatten(0, 1), singly)
