"""A given run with longer memories: its rows are what eval finds, and verdicts need an interval above zero."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import segue
from runs import make_corpus, small_recipe
from segue.config import Reach, Reading
from segue.infer.evaluate import evaluate
from segue.lab import results
from segue.lab.drawing import style
from segue.lab.experiment import Setting, Table, Verdict
from segue.lab.run_memory import BLOCKS, draw_memories, gain, tell_memories


def sweep_of(trained: list[float], *longer: list[float]) -> dict[str, Any]:
    """A sweep with these bits by block."""
    rows = [
        {
            "memory": 64 * 2**number,
            "spanned": False,
            "clamp": None,
            "valid": sum(bits) / len(bits),
            "bits": sum(bits) / len(bits),
            "blocks": bits,
        }
        for number, bits in enumerate([trained, *longer])
    ]
    return {"run": "hour", "segment": 64, "scored": 1000, "unit": "bits per byte", "rows": rows}


def verdict_of(sweep: dict[str, Any]) -> Verdict:
    verdict, table = tell_memories([sweep])
    assert isinstance(verdict, Verdict)
    assert isinstance(table, Table)
    assert len(table.rows) == len(sweep["rows"])
    return verdict


def test_a_gain_in_every_block_is_shown_and_sized() -> None:
    verdict = verdict_of(sweep_of([2.0, 1.0, 3.0], [1.98, 0.97, 2.96], [1.99, 0.99, 2.98]))
    assert verdict.shown
    assert verdict.size == "-0.030 bits per byte at 2 times the memory"


@pytest.mark.parametrize("longer", [[1.0, 3.0, 1.95], [2.01, 1.01, 3.01], [1.999, 0.999, 2.999]])
def test_a_gain_that_hangs_on_a_block_a_loss_and_a_trifle_are_not_shown(longer: list[float]) -> None:
    assert not verdict_of(sweep_of([2.0, 1.0, 3.0], longer)).shown


def test_the_interval_holds_the_value_and_is_the_same_again() -> None:
    trained, longer = sweep_of([2.0, 1.0, 3.0, 2.5], [1.9, 1.05, 2.8, 2.4])["rows"]
    found = gain(longer, trained)
    assert found.value == pytest.approx(0.0875)
    assert found.low < found.value < found.high
    assert gain(longer, trained) == found


def test_a_picture_for_each_run() -> None:
    sweep = sweep_of([2.0, 1.0, 3.0], [1.98, 0.97, 2.96])
    sweep["rows"][1:] = [
        {**row, "spanned": spanned} for row in sweep["rows"][1:] for spanned in (False, True)
    ]
    assert draw_memories([]) == []
    with style():
        (picture,) = draw_memories([sweep, sweep])
    assert [axis.get_title() for axis in picture.figure.axes] == ["hour", "hour"]


def test_a_run_is_read_as_by_eval(tmp_path: Path) -> None:
    data = make_corpus(tmp_path, words=400)
    run = segue.train(small_recipe(), data, tmp_path / "run")
    setting = Setting(data, tmp_path / "lab", quick=True, runs=(run,))
    (sweep,) = json.loads(json.dumps(results.measure(setting)["memories"]))
    first, *longer = sweep["rows"]
    assert (first["memory"], first["clamp"]) == (9, None)
    assert [(row["memory"], row["spanned"]) for row in longer] == [
        (18, False), (36, False), (18, True), (36, True),
    ]  # fmt: skip
    bundle, stream = segue.load(run), setting.stream("test")
    for row in sweep["rows"]:
        reach = Reach(
            memory=row["memory"], clamp=row["clamp"], span=row["memory"] if row["spanned"] else None
        )
        score = evaluate(bundle.model, stream, Reading(segment=7, reach=reach), limit=sweep["scored"])
        assert len(row["blocks"]) == BLOCKS
        assert row["bits"] == pytest.approx(score.bits_per_byte, abs=1e-6)
        assert math.isfinite(row["valid"])


def test_a_run_without_memory_has_no_row(tmp_path: Path) -> None:
    data = make_corpus(tmp_path, words=400)
    run = segue.train(small_recipe(memory=0), data, tmp_path / "run")
    found = results.measure(Setting(data, tmp_path / "lab", quick=True, runs=(run,)))
    assert found["memories"] == []
    assert found["ours"]
