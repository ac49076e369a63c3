"""Nats in chunks: the same numbers and gradients, and never more than one chunk of logits."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from segue.config import VocabularyConfig
from segue.errors import InputError, SegueError
from segue.nn import vocab
from support import build, shape, some_tokens


def nats_and_gradients(
    rows: Tensor, table: Tensor, bias: Tensor, targets: Tensor, smoothing: float
) -> list[Tensor]:
    inputs = [tensor.clone().requires_grad_() for tensor in (rows, table, bias)]
    nats = vocab.linear_nats(*inputs, targets, smoothing)
    weight = torch.linspace(-1, 2, len(nats), dtype=nats.dtype)
    return [nats.detach(), *torch.autograd.grad((nats * weight).sum(), inputs)]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("chunk", [1, 7, 40, 130])
def test_chunks_change_nothing(chunk: int, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows, table, bias = (torch.randn(*size, dtype=torch.float64) for size in ((9, 4), (13, 4), (13,)))
    targets = torch.randint(0, 13, (9,))
    whole = nats_and_gradients(rows, table, bias, targets, smoothing)
    monkeypatch.setattr(vocab, "LOGITS_AT_ONCE", chunk)
    monkeypatch.setattr(vocab, "MIN_ROWS", 1)
    assert_close(nats_and_gradients(rows, table, bias, targets, smoothing), whole)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.size = max(self.size, result.numel())
        return result


@pytest.mark.parametrize("cutoffs", [(), (500,)])
def test_training_never_holds_more_than_one_chunk_of_logits(
    cutoffs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocab, "LOGITS_AT_ONCE", 12_000)
    monkeypatch.setattr(vocab, "MIN_ROWS", 1)
    model = build(shape(vocab=1000, width=4, cutoffs=cutoffs))
    hidden = torch.randn(2, 60, 4, dtype=torch.float64, requires_grad=True)
    targets = some_tokens(2, 60) * 70
    with Largest() as largest:
        model.nats(hidden, targets).sum().backward()
    assert 5_000 < largest.size <= 12_000  # all logits at once would be 120,000
    assert hidden.grad is not None


def test_targets_that_do_not_fit_are_refused() -> None:
    model = build(shape(cutoffs=(4,), divisor=2))
    hidden = torch.randn(2, 4, 8, dtype=torch.float64)
    with pytest.raises(SegueError, match=r"want targets \(2, 4\); found \(2, 3\)"):
        model.nats(hidden, some_tokens(2, 3))
    for bad in (-100, 13):
        with pytest.raises(SegueError, match=f"between 0 and 12; found {bad}"):
            model.nats(hidden, torch.full((2, 4), bad))


@pytest.mark.parametrize("cutoffs", [(), (5, 9)])
def test_smoothed_targets_are_checked(cutoffs: tuple[int, ...]) -> None:
    """With clusters too: fewer targets than states gave fewer nats, and nobody noticed."""
    vocabulary, hidden = (
        vocab.Vocabulary(VocabularyConfig(vocab=17, width=8, cutoffs=cutoffs)),
        torch.zeros(2, 3, 8),
    )
    with pytest.raises(InputError, match="want targets"):
        vocabulary.smoothed_nats(hidden, torch.zeros(2, 2, dtype=torch.int64), 0.1)
    with pytest.raises(InputError, match="found 17"):
        vocabulary.smoothed_nats(hidden, torch.full((2, 3), 17), 0.1)
