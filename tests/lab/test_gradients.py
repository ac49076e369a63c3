"""Gradient norms by distance equal those of the Jacobian, and follow the theory of RNNs."""

import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from segue.config import Reach, RecurrentConfig
from segue.lab import gradients
from segue.nn.recurrent import RecurrentModel
from support import VOCAB, some_tokens


def test_norms_are_those_of_the_jacobian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "DIRECTIONS", 600)
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(vocab=12, width=4, cell="gru", layers=1, tied=False)).double()
    norms = gradients.norms(model, lanes=1, length=6, seed=0)
    before, layer_input = model.vocabulary.embed(torch.arange(12)[None]).detach().split(6, dim=1)
    state = model.cells(before)[1].detach()

    def last(states: torch.Tensor) -> torch.Tensor:
        return model.cells(states, state)[0][0, -1]

    whole = torch.autograd.functional.jacobian(last, layer_input)[:, 0]  # (C, T, C)
    by_distance = whole.square().sum(dim=(0, 2)).sqrt().flip(0) / math.sqrt(4)
    assert norms == pytest.approx(by_distance.tolist(), rel=0.1)


def test_a_linear_recurrence_multiplies_by_its_scale() -> None:
    """With a spectral radius so small that tanh is linear, each step multiplies the gradient by it."""
    norms = gradients.norms(gradients._rnn(0, 0.5), gradients.LANES, gradients.LENGTH, 0)
    assert gradients.factor(norms) == pytest.approx(0.5, rel=0.1)
    assert (
        gradients.factor(gradients.norms(gradients._rnn(0, 2.0), gradients.LANES, gradients.LENGTH, 0)) > 1.1
    )


def test_the_first_tokens_of_a_text_are_not_measured() -> None:
    """After an empty state, tanh is not yet saturated: gradients of a large matrix would rise there."""
    norms = gradients.norms(gradients._rnn(0, 2.0), gradients.LANES, gradients.LENGTH, 0)
    steps = [math.log(far / near) for near, far in pairwise(norms[5:])]
    assert sum(steps[-8:]) / 8 < 2 * math.log(gradients.factor(norms))


def test_an_id_for_every_place_reads_the_same() -> None:
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(vocab=VOCAB, width=6)).double().eval()
    tokens = some_tokens(2, 7)
    apart = gradients.by_position(model, tokens)
    memory = model.start(lanes=2, reach=Reach(memory=1))
    hidden, _ = apart(torch.arange(14).view(2, 7), memory)
    assert_close(hidden, model(tokens, memory)[0])
