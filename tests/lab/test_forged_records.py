"""Records and figures that were forged or damaged, and folders that cannot be written: one line each, in time."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runs import make_corpus
from segue.cli import app
from segue.errors import InputError
from segue.lab import results
from segue.lab.experiment import Setting, experiment
from segue.lab.record import make_folder, measured, read_record, record_path
from segue.lab.report import check_page


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("forged")
    corpus = make_corpus(folder, documents=24)
    written, _ = measured(experiment("positions"), Setting(corpus, folder, quick=True), "")
    return written.model_dump()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"setting": {"seeds": 5}}, "'seeds' should be a list"),
        ({"setting": {"data": "x"}}, "'data' an object"),
        ({"setting": {"data": None}}, "'data' an object"),
        ({"command": "\ud800"}, "half a character; remove it and measure again"),
        ({"seconds": -5}, "seconds"),
        ({"results": {"widths": float("nan")}}, "NaN is no finite number"),
    ],
)
def test_a_forged_record_is_refused(
    change: dict[str, Any], said: str, record: dict[str, Any], tmp_path: Path
) -> None:
    path = record_path(tmp_path, "positions")
    path.write_text(json.dumps(record))
    assert read_record(tmp_path, "positions") is not None
    path.write_text(json.dumps({**record, **change}))
    with pytest.raises(InputError, match=said):
        read_record(tmp_path, "positions")


def test_a_number_that_is_too_large_is_refused(record: dict[str, Any], tmp_path: Path) -> None:
    path = record_path(tmp_path, "positions")
    path.write_text(json.dumps(record).replace('"results": {', '"results": {"x": 1e999, ', 1))
    with pytest.raises(InputError, match="1e999 is no finite number"):
        read_record(tmp_path, "positions")


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": float("inf")},
        {"parameters": -10},
        {"valid": [-4.0]},
        {"valid": "123"},
        {"valid": [float("nan")]},
        {"test": [10**400]},
        {"test": []},
    ],
)
def test_figures_of_models_are_positive_numbers(change: dict[str, Any], tmp_path: Path) -> None:
    path, row = tmp_path / "models.json", {"valid": [1.5], "test": [1.6], "parameters": 10}
    path.write_text(json.dumps({"data": "x", "tokens": 5, "rows": {"a": {**row, **change}}}))
    with pytest.raises(InputError) as refused:
        results.models_figures(path)
    assert "remove" not in str(refused.value)  # it is the user's own file


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(InputError, match="is a link to nowhere; choose another folder"):
        make_folder(tmp_path / "nowhere")
    corpus = make_corpus(tmp_path, documents=24)
    given = ["lab", "positions", "--quick", "--data", str(corpus), "-o", str(tmp_path / "nowhere")]
    assert "is a link to nowhere" in str(CliRunner().invoke(app, given).exception)


def test_a_page_that_is_a_folder_is_not_the_labs(tmp_path: Path) -> None:
    (tmp_path / "index.html").mkdir()
    with pytest.raises(InputError, match="is not a page of the lab"):
        check_page(tmp_path)
