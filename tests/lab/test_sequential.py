"""Layers along a sequence: their arithmetic against what gradients and counters find, and verdicts that can fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from runs import make_corpus
from segue.lab import sequential
from segue.lab.experiment import Setting, Table, Verdict
from segue.lab.layers import layers_between
from segue.lab.record import measured
from segue.lab.report import write_report
from segue.lab.sequence_layers import LAYERS, Filters, work
from segue.lab.threads import TURNS, threads
from segue.native import turned_off


class OneSequence(nn.Module):
    """A layer on states (n, d)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: Tensor) -> Tensor:
        outputs: Tensor = self.layer(states[:, None])[:, 0]
        return outputs


def active(layer: nn.Module) -> nn.Module:
    """The layer with biases so large that no ReLU stops a gradient."""
    for name, weight in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.constant_(weight, 9.0)
    return OneSequence(layer)


@pytest.mark.parametrize("length", [2, 5, 6, 9, 13, 14, 29])
def test_path_lengths_are_those_that_gradients_take(length: int) -> None:
    torch.manual_seed(0)
    builds: dict[str, Callable[[int], nn.Module]] = {
        "TCN": lambda below: active(Filters(4, "tcn", 2**below)),
        "GCNN": lambda _: OneSequence(LAYERS["GCNN"].build(4)),
        "self-attention": lambda _: OneSequence(LAYERS["self-attention"].build(4)),
    }
    for name, build in builds.items():
        assert layers_between(build, length) == LAYERS[name].path(length)


@pytest.mark.parametrize("name", ["GRU", "self-attention", "feed-forward"])
def test_multiplications_are_those_that_are_counted(name: str) -> None:
    layer, length, width = LAYERS[name].build(8), 16, 8
    with turned_off(), FlopCounterMode(display=False) as counted, torch.no_grad():
        layer(torch.randn(length, 3, width))
    masked = (length - 1) * width if name == "self-attention" else 0  # torch computes masked scores too
    products = LAYERS[name].products(length, width) + masked
    assert counted.get_total_flops() == 2 * 3 * length * products


@pytest.mark.parametrize("name", ["LSTM", "QRNN", "GCNN", "TCN"])
def test_each_weight_of_a_matrix_multiplies_each_token_once(name: str) -> None:
    layer = LAYERS[name].build(8)
    weights = sum(weight.numel() for weight in layer.parameters() if weight.dim() > 1)
    assert weights == LAYERS[name].products(16, 8)


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_sees_what_lies_ahead(name: str) -> None:
    torch.manual_seed(0)
    layer, states = LAYERS[name].build(8).double(), torch.randn(12, 2, 8, dtype=torch.float64)
    changed = states.clone()
    changed[7:] += 1
    torch.testing.assert_close(layer(states)[:7], layer(changed)[:7])
    assert not torch.equal(layer(states)[7:], layer(changed)[7:])


def test_a_training_pass_leaves_no_gradient_behind() -> None:
    for layer in LAYERS.values():
        for run in work(layer.build, 4, 2, 8).values():
            run()


def test_threads_are_what_they_were() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def figures(**seconds: tuple[float, float, float]) -> dict[str, Any]:
    """Results whose layers take (shortest, longest, longest on two threads) seconds."""
    kinds = {name: layer.kind for name, layer in LAYERS.items()}
    default = {"recurrent": (1.0, 3.0, 3.0), "quasi-recurrent": (1.0, 2.0, 2.0)}
    times = {}
    for name, kind in kinds.items():
        short, long, two = seconds.get(name, default.get(kind, (1.0, 1.0, 0.55)))
        times[name] = {"one": [short, long], "again": [short, long], "two": [short, two]}
    return {
        "lengths": [64, 8192],
        "tokens": 8192,
        "width": 256,
        "repeats": 5,
        "cores": 2,
        "kinds": kinds,
        "seconds": {family: dict.fromkeys(sequential.PASSES, times) for family in sequential.FAMILIES},
        "arithmetic": {name: {"products": [1, 1], "waits": [1, 1], "path": [1, 1]} for name in kinds},
    }


def shown(results: dict[str, Any]) -> dict[str, bool]:
    blocks = [block for block in sequential.tell(results) if isinstance(block, Verdict)]
    return {block.claim.split(maxsplit=2)[1]: block.shown for block in blocks}


def test_times_that_do_not_grow_and_threads_that_gain_nothing_show_nothing() -> None:
    assert shown(figures()) == {"same": True, "takes": True, "sequence": True, "second": True}
    flat = figures(LSTM=(1.0, 1.2, 1.2))
    assert not shown(flat)["same"]
    assert not shown(figures(GCNN=(1.0, 1.0, 0.9)))["second"]  # a convolution that gains nothing
    assert not shown(figures(GRU=(1.0, 3.0, 1.6)))["second"]  # a recurrence that gains too
    assert not shown(figures(**{"self-attention": (1.0, 2.0, 1.0)}))[
        "takes"
    ]  # it multiplies no more, and takes longer


def test_a_second_measurement_that_disagrees_shows_nothing() -> None:
    results = figures()
    results["seconds"]["single"] = figures(GRU=(1.0, 3.0, 1.6))["seconds"]["single"]
    assert not shown(results)["second"]  # it gained nothing once, and then as much as a convolution
    results = figures()
    results["seconds"]["batch"]["forward"]["GRU"]["again"] = [3.0, 3.0]
    assert not shown(results)["same"]  # shortest and longest took as long


def test_from_measurement_to_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "QUICK", sequential.Sizes((4, 8), 16, width=8, repeats=1))
    corpus = make_corpus(tmp_path / "data", documents=20, words=20)
    record, _ = measured(sequential.EXPERIMENT, Setting(corpus, tmp_path, quick=True), "")
    times = record.results["seconds"]["single"]["training"]["LSTM"]
    assert set(times) == set(TURNS)
    assert len(times["two"]) == 2
    assert sum(isinstance(block, Table) for block in sequential.tell(record.results)) == 2
    page, notes = write_report(tmp_path, draw=["sequential"])
    assert '<section id="sequential">' in page.read_text()
    assert notes == []
