"""The results in docs/results/lab are complete, of the full version, and the page shows them."""

from pathlib import Path

import pytest

from segue.lab.experiment import TITLES, experiment
from segue.lab.record import read_record
from segue.lab.report import _block as as_html

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "lab"
PAGE = (FOLDER / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(TITLES))
def test_the_page_says_what_the_record_tells(name: str) -> None:
    record = read_record(FOLDER, name)
    assert record is not None
    assert record.version == experiment(name).version, "measure it again: its measurement has changed"
    assert not record.setting["quick"]
    for block in experiment(name).tell(record.results):
        assert as_html(block) in PAGE, "draw the page again: segue lab all --only-report"
