"""The summary on top of the page: one line for each verdict, computed from it."""

import re
from dataclasses import replace

from segue.lab.experiment import Verdict
from segue.lab.summary import LONGEST, Told, how_large, how_sure, summary

PLAIN = Verdict("Memory helps.", True, "2.0 against 2.1 bits, 0.1 saved; each of 3 seeds")
SIZED = Verdict(
    "It does <not>.", False, "a long story; one seed", size="-50 %", sure="longer in 3 % of texts"
)


def test_every_verdict_has_one_line_with_its_size_and_its_certainty() -> None:
    page = summary([Told("speed", ["words", PLAIN], ""), Told("recl", [SIZED], "made by another version")])
    rows = re.findall(r"<tr><td>.*?</tr>", page)
    assert "1 of 2 claims are shown" in page
    assert len(rows) == 2
    for words in ("#speed", "Memory helps<", ">shown<", "0.1 saved", "each of 3 seeds"):
        assert words in rows[0]
    for words in ("#recl", "&lt;not&gt;", ">not shown<", "-50 %", "longer in 3 % of texts (another version)"):
        assert words in rows[1]


def test_without_a_size_the_first_reason_is_told_and_the_seeds_are_found() -> None:
    assert how_large(PLAIN) == "2.0 against 2.1 bits, 0.1 saved"
    assert how_sure(PLAIN) == "each of 3 seeds"
    assert how_sure(replace(PLAIN, shown=False)) == "3 seeds"
    assert how_sure(Verdict("", True, "1.0 s against 2.0 s"), 3) == "one measurement"
    assert how_sure(Verdict("", True, "1.0 ± 0.1 s"), 3) == "3 seeds"
    long = how_large(Verdict("", True, "word " * 100))
    assert len(long) <= LONGEST + 2
    assert long.endswith("word …")


def test_no_verdicts_no_summary() -> None:
    assert summary([Told("speed", ["words"], "")]) == ""
