"""The summary on top of the page: each claim in one line, shown or not, how large, how sure. All from the verdicts."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from segue.lab.experiment import Block, Verdict

LONGEST = 140
"""Characters of a cell: what is longer is cut, and is complete in the section."""

SEEDS = re.compile(r"; (one seed|each of \d+ seeds)(?=$| \()")


class Told(NamedTuple):
    """What an experiment's section tells."""

    name: str
    blocks: Sequence[Block]
    note: str  # on a record of another version
    seeds: int = 1


def summary(sections: Iterable[Told]) -> str:
    """The table of all verdicts, with a line that counts them; empty if there are none."""
    lines = [(told, block) for told in sections for block in told.blocks if isinstance(block, Verdict)]
    if not lines:
        return ""
    shown = sum(verdict.shown for _, verdict in lines)
    rows = "".join(_row(told, verdict) for told, verdict in lines)
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("claim", "", "how large", "how sure"))
    return (
        f'<div class="summary"><h2>In short: {shown} of {len(lines)} claims are shown at this scale</h2>\n'
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>'
    )


def _row(told: Told, verdict: Verdict) -> str:
    kind, word = ("shown", "shown") if verdict.shown else ("unshown", "not shown")
    sure = how_sure(verdict, told.seeds) + (" (another version)" if told.note else "")
    return (
        f'<tr><td><a href="#{told.name}">{html.escape(verdict.claim.removesuffix("."))}</a></td>'
        f'<td class="{kind}">{word}</td><td>{html.escape(how_large(verdict))}</td><td>{html.escape(sure)}</td></tr>'
    )


def how_large(verdict: Verdict) -> str:
    """The verdict's size; without one, the first of its reasons."""
    return cut(verdict.size or SEEDS.sub("", verdict.because).split("; ")[0])


def how_sure(verdict: Verdict, seeds: int = 1) -> str:
    """What agrees: the seeds or texts that the verdict names, or the seeds behind a mean with a range.

    Of what is not shown, the seeds are counted only: they need not agree.
    """
    named = SEEDS.search(verdict.because)
    sure = verdict.sure or (named[1] if named else "")
    if not sure:
        return f"{seeds} seeds" if "±" in verdict.because else "one measurement"
    return sure if verdict.shown else sure.replace("each of ", "")


def cut(text: str) -> str:
    """The text, or its whole words that fit in a cell."""
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST].rsplit(" ", 1)[0].rstrip(",;:") + " …"
