"""The data that a run was trained on is read from the run."""

import json
from pathlib import Path

import pytest

from segue.cli.eval_translator import data_of
from segue.errors import SegueError


@pytest.mark.parametrize("told", [{}, {"data": None}, {"data": 5}, {"data": ["a"]}])
def test_a_run_that_does_not_say_it_is_one_line(told: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(told))
    with pytest.raises(SegueError, match="use --data"):
        data_of(tmp_path, None)
    assert data_of(tmp_path, Path("data")) == Path("data")
