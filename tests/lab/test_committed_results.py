"""The results in docs/results/lab: whole, full, and what the page beside them says."""

import html
from pathlib import Path

import pytest

from segue.lab.experiment import TITLES, Table, Verdict, experiment
from segue.lab.record import read_record

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "lab"
PAGE = html.unescape((FOLDER / "index.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TITLES)
def test_the_page_says_what_the_record_tells(name: str) -> None:
    record = read_record(FOLDER, name)
    assert record is not None
    assert record.version == experiment(name).version, "measure it again: its measurement has changed"
    assert not record.setting["quick"]
    for block in experiment(name).tell(record.results):
        if isinstance(block, Verdict):
            assert block.because in PAGE
        elif isinstance(block, Table):
            assert all(cell in PAGE for row in block.rows for cell in row)
        else:
            assert block in PAGE
