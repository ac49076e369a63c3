"""Lengths never seen: the same targets at seen and unseen places, and verdicts that untrained models do not pass."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from runs import make_corpus
from segue.errors import InputError
from segue.lab import lengths, positions
from segue.lab.experiment import Setting, Verdict
from segue.lab.lengths import SIDES, Sizes, build, nats, read

SIZE = Sizes(steps=1, width=8, layers=1, texts=3, length=20, lanes=2)


def texts() -> torch.Tensor:
    return torch.randint(11, (3, 41), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("encoding", SIDES)
def test_both_readings_predict_the_same_targets(encoding: str) -> None:
    torch.manual_seed(0)
    model, text = build(encoding, 11, SIZE).double().eval(), texts()
    measured = read(model, text)
    with torch.no_grad():
        whole = nats(model, text) / torch.tensor(2.0).log()
        late = [
            nats(model, text[:, start : start + 21])[:, 10:] / torch.tensor(2.0).log() for start in (10, 20)
        ]
    assert measured["beyond"] == pytest.approx(float(whole[:, 20:].mean()))
    assert measured["seen"] == pytest.approx(float(torch.cat(late, dim=1).mean()))
    assert len(measured["curve"]) == 20


def test_without_layers_that_mix_both_readings_cost_the_same() -> None:
    """The targets are the same: whoever looks at the last token alone cannot tell the readings apart."""
    model = build("none", 11, SIZE).double().eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.out.weight.zero_()  # type: ignore[union-attr]
    measured = read(model, texts())
    assert_close(measured["beyond"], measured["seen"])


def test_a_split_without_a_long_text_is_said_before_training(tmp_path: Path) -> None:
    setting = Setting(make_corpus(tmp_path, documents=12, words=20), tmp_path / "lab", quick=True)
    with pytest.raises(InputError, match=r"has a valid split of \d+ tokens; the test needs texts of 201"):
        lengths.measure(setting)
    assert not (tmp_path / "lab").exists()


def side(seen: float, beyond: float) -> dict[str, object]:
    return {"learning_rate": 0.1, "seeds": [{"seen": seen, "beyond": beyond, "curve": [seen, beyond]}]}


def test_who_has_learned_nothing_does_not_generalize() -> None:
    def shown(seen: float, beyond: float) -> tuple[bool, bool]:
        results = {
            "length": 100,
            "texts": 1,
            "tokens": 1,
            "unigram": 4.7,
            "sides": {"sinusoidal": side(seen, beyond)},
        }
        first, gain = (block for block in lengths.tell(results) if isinstance(block, Verdict))
        return first.shown, gain.shown

    assert shown(3.0, 2.9) == (True, True)
    assert shown(3.0, 3.001) == (True, False)
    assert shown(3.0, 3.1) == (False, False)
    assert shown(8.0, 7.9) == (False, False)


def test_dot_products_are_followed_over_all_distances() -> None:
    assert positions.rises(2, 3) == {
        "width": 2,
        "distances": 2,
        "rises": 0,
        "first": None,
    }  # cos 0 > cos 1 > cos 2
    assert positions.rises(2, 10)["first"] == 4  # cos 4 > cos 3
    assert not positions._falling([positions.rises(128, 100)]).shown
    assert positions._falling([positions.rises(2, 3)]).shown


def test_sinusoids_are_confronted_with_what_was_measured() -> None:
    def verdicts(**measured: object) -> list[bool]:
        return [block.shown for block in positions._generalization(measured) if isinstance(block, Verdict)]

    worse = {"lengths": [64, 128], "bits": [[2.4, 2.5], [3.5, 3.6]]}
    equal = {"lengths": [64, 128], "bits": [[2.4, 2.5], [2.4, 2.5]]}
    assert verdicts() == []
    assert verdicts(extrapolation=worse) == [False]
    assert verdicts(extrapolation=equal) == []  # untrained models do not get worse either
    assert verdicts(extrapolation=equal, lengths={**equal, "generalizes": True}) == [True]
    assert verdicts(extrapolation=equal, lengths={**equal, "generalizes": False}) == [False]
    assert verdicts(extrapolation=worse, lengths={**equal, "generalizes": True}) == [False]
