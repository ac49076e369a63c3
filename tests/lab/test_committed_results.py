"""The results in docs/results/lab are complete, of the full version, and the page shows them."""

from pathlib import Path

import pytest

from segue.lab.experiment import TITLES, experiment
from segue.lab.record import read_record
from segue.lab.report import _block as as_html

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "lab"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
PAGE = (FOLDER / "index.html").read_text(encoding="utf-8")


WAITING = ("sequential", "translation")
"""Experiments that were not yet measured in full; the README beside the page names them."""


def test_the_readme_names_what_is_not_measured_yet() -> None:
    missing = tuple(name for name in TITLES if read_record(FOLDER, name) is None)
    assert missing == WAITING
    assert f"not measured in full: {', '.join(f'`{name}`' for name in missing)}." in README


@pytest.mark.parametrize("name", [name for name in TITLES if name not in WAITING])
def test_the_page_says_what_the_record_tells(name: str) -> None:
    record = read_record(FOLDER, name)
    assert record is not None
    assert record.version == experiment(name).version, "measure it again: its measurement has changed"
    assert not record.setting["quick"]
    for block in experiment(name).tell(record.results):
        assert as_html(block) in PAGE, "draw the page again: segue lab all --only-report"
