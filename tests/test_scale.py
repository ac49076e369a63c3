"""What ranks take, on paper: the sums that anybody can check."""

import json
from pathlib import Path
from typing import Any

import pytest

from runs import small_recipe
from segue.cli import app
from segue.errors import SegueError
from segue.footprint import parameters, training_bytes, training_flops
from segue.presets import preset
from segue.recipe import Recipe
from segue.scale import Machines, rank_share

MACHINES = Machines(flops=1e9, bandwidth=1e6)


def recipe_of_lanes(lanes: int) -> Recipe:
    return small_recipe(lanes=lanes)


@pytest.mark.parametrize("sharded", [False, True])
def test_one_rank_takes_what_one_process_takes_and_sends_nothing(sharded: bool) -> None:
    recipe = recipe_of_lanes(8)
    share = rank_share(recipe, 1, MACHINES, sharded=sharded)
    assert share.total_bytes == training_bytes(recipe)
    assert share.sent_in_a_step == 0
    assert share.least_efficiency == share.most_efficiency == 1


def test_ranks_share_lanes_and_work_and_with_fsdp_weights_too() -> None:
    recipe = recipe_of_lanes(8)
    whole, parts = (rank_share(recipe, 4, MACHINES, sharded=sharded) for sharded in (False, True))
    weights = 4 * parameters(recipe.model)
    assert whole.lanes == parts.lanes == 2
    assert whole.step_bytes < rank_share(recipe, 1, MACHINES, sharded=False).step_bytes / 2
    assert (whole.state_bytes, parts.state_bytes) == (4 * weights, weights)
    assert whole.seconds_computing == pytest.approx(training_flops(recipe.model, recipe.train) / 4 / 1e9)
    # a ring passes (N - 1) / N of what it shares through every rank: twice to add up, once to gather
    assert whole.sent_in_a_step == pytest.approx(2 * weights * 3 / 4)
    assert 2 * weights * 3 / 4 < parts.sent_in_a_step < 3 * weights * 3 / 4
    assert whole.seconds_sending == pytest.approx(whole.sent_in_a_step / 1e6)


def test_efficiency_lies_between_sending_alone_and_sending_behind_the_backward_pass() -> None:
    slow, fast = (
        rank_share(recipe_of_lanes(8), 2, Machines(1e9, bandwidth), sharded=False)
        for bandwidth in (1e3, 1e15)
    )
    assert slow.least_efficiency < slow.most_efficiency < 0.01
    assert fast.least_efficiency == pytest.approx(1)
    assert fast.most_efficiency == 1


def test_the_command_line_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    app(["info", "enwik8-24l", "--ranks", "64", "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert told["FSDP2"]["lanes"] == 1
    assert told["FSDP2"]["state_bytes"] == 4 * 4 * told["parameters"] // 64
    assert told["DDP"]["total_bytes"] > told["FSDP2"]["total_bytes"]
    assert told["DDP"]["efficiency"].endswith("%")
    for words, match in (
        (["enwik8-24l", "--ranks", "48"], "64 lanes cannot be divided among 48 ranks; start 32 or 64 ranks"),
        (["transformer-base", "--ranks", "8"], "--ranks needs a Transformer-XL preset"),
    ):
        with pytest.raises(SegueError, match=match):
            app(["info", *words], standalone_mode=False)


DOCUMENT = Path(__file__).parents[1] / "docs" / "scale.md"
SHOWN = [
    (name, ranks, bandwidth, sharded)
    for name in ("enwik8-24l", "lm1b-large")
    for ranks, bandwidth in ((8, 200e9), (64, 12.5e9))
    for sharded in (False, True)
]


def row(name: str, ranks: int, bandwidth: float, sharded: bool) -> str:
    """A line of the document's table."""
    recipe = preset(name).recipe
    assert isinstance(recipe, Recipe)
    share = rank_share(recipe, ranks, Machines(bandwidth=bandwidth), sharded=sharded)
    state, total, sent = (
        f"{size / 1e9:.2f} GB" for size in (share.state_bytes, share.total_bytes, share.sent_in_a_step)
    )
    efficiency = f"{share.least_efficiency:.0%} to {share.most_efficiency:.0%}"
    way, computing = "FSDP2" if sharded else "DDP", f"{share.seconds_computing:.3f} s"
    cells = (f"`{name}`", ranks, way, share.lanes, state, total, sent, computing, efficiency)
    return f"| {' | '.join(map(str, cells))} |"


def test_the_document_says_what_is_calculated() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for shown in SHOWN:
        assert row(*shown) in text


def measured_row(result: dict[str, Any]) -> str:
    """A line of the document's other table, from what `make scale` wrote down."""
    most = max(one["peak"] - one["begun_with"] for one in result["each"]) / 2**20
    cells = (
        result["model"],
        result["ranks"],
        result["way"],
        f"{result['each'][0]['tokens_per_second']:,.0f}",
    )
    return f"| {' | '.join(map(str, cells))} | {most:,.0f} MiB |"


def test_the_document_says_what_was_measured() -> None:
    text, file = DOCUMENT.read_text(encoding="utf-8"), DOCUMENT.parents[1] / "bench/results/scale.json"
    for result in json.loads(file.read_text())["results"]:
        assert measured_row(result) in text
