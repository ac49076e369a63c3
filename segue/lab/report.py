"""One HTML page of all results, rendered from their JSON: self-contained, light and dark, for screen and paper."""

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from segue.errors import InputError
from segue.lab.drawing import inline, save, style
from segue.lab.experiment import Block, Experiment, Picture, Table, Verdict, experiment
from segue.lab.record import Record, read_records, record_path, version_mismatch, write_text
from segue.lab.statistics import MARGIN
from segue.lab.summary import Told, summary
from segue.lab.tried_rates import edge_note

PICTURES = "pictures"


def write_report(output: Path, draw: Sequence[str]) -> tuple[Path, list[str]]:
    """Write index.html from every record in the folder, and the pictures of the experiments in `draw` as files.

    Returns the page's path, and notes on records of other versions.
    """
    check_page(output)
    records = read_records(output)
    if not records:
        raise InputError(f"{output} has no results yet; run: segue lab all --quick -o {output}")
    sections, notes, told, pictures = [], list[str](), list[Told](), list[Picture]()
    for name, record in records.items():
        shown = experiment(name)
        note = version_mismatch(record, shown)
        if note:
            notes.append(f"{name}: {note}")
        blocks, drawn = _told(output, shown, record, note)
        pictures += drawn if name in draw else ()
        told.append(Told(name, blocks, note, len(record.setting.get("seeds", [0]))))
        sections.append(_section(shown, record, note, blocks, drawn))
    template = files("segue.lab").joinpath("report.html").read_text(encoding="utf-8")
    page = template.replace("__MARGIN__", f"{MARGIN:g}").replace("__INDEX__", _index(records))
    page = page.replace("__SUMMARY__", summary(told)).replace("__SECTIONS__", "\n".join(sections))
    write_text(output / "index.html", page)  # first: a folder with pictures and no page is not the lab's
    for picture in pictures:
        save(picture, output / PICTURES)
    return output / "index.html", notes


def check_page(output: Path) -> None:
    """Refuse to write over an index.html or pictures that are not the lab's, or into what is no folder."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; -o needs a folder")
    page, ours = output / "index.html", "<title>segue: what the papers claim, measured</title>"
    if page.exists() and (page.is_dir() or ours not in page.read_text(encoding="utf-8", errors="replace")):
        raise InputError(f"{page} is not a page of the lab; nothing was overwritten: choose another folder")
    pictures = output / PICTURES
    if not page.exists() and pictures.exists() and not (pictures.is_dir() and not any(pictures.iterdir())):
        raise InputError(f"{pictures} is not the lab's; nothing was overwritten: choose another folder")


def _index(records: Iterable[str]) -> str:
    links = (f'<li><a href="#{name}">{html.escape(experiment(name).title)}</a></li>' for name in records)
    return f"<ol>{''.join(links)}</ol>"


def _told(
    output: Path, shown: Experiment, record: Record, note: str
) -> tuple[Sequence[Block], Sequence[Picture]]:
    """The blocks and pictures of a record; of another version's, if its shape is still known."""
    try:
        with style(shown.name):
            tuning = edge_note(record.results)
            return [*shown.tell(record.results), *([tuning] if tuning else [])], shown.draw(record.results)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        if not note:
            path = record_path(output, shown.name)
            raise InputError(f"{path} cannot be drawn ({error!r}); remove it and measure again") from error
        return [f"This version cannot draw results of that shape ({error!r}): measure them again."], []


def _section(
    shown: Experiment, record: Record, note: str, blocks: Sequence[Block], drawn: Sequence[Picture]
) -> str:
    warning = f'<p class="note">These results were {html.escape(note)}.</p>' if note else ""
    body = "\n".join(_arranged(blocks, drawn))
    return (
        f'<section id="{shown.name}"><h2>{html.escape(shown.title)}</h2>\n'
        f'<p class="claim"><span>The claim</span> {html.escape(shown.claim)}</p>\n{warning}{body}\n'
        f"{_circumstances(record)}</section>"
    )


def _arranged(blocks: Sequence[Block], drawn: Sequence[Picture]) -> Iterator[str]:
    """The blocks up to the first table, then the pictures, then the rest."""
    first = next((place for place, block in enumerate(blocks) if isinstance(block, Table)), len(blocks))
    yield from map(_block, blocks[:first])
    yield from map(_figure, drawn)
    yield from map(_block, blocks[first:])


def _block(block: Block) -> str:
    show: dict[type, Callable[..., str]] = {str: _paragraph, Table: _table, Verdict: _verdict}
    return show[type(block)](block)


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _verdict(verdict: Verdict) -> str:
    kind, word = ("shown", "Shown") if verdict.shown else ("unshown", "Not shown at this scale")
    return (
        f'<p class="verdict {kind}"><b>{word}</b> {html.escape(verdict.claim)} '
        f"<span>Measured: {html.escape(verdict.because)}.</span></p>"
    )


def _table(table: Table) -> str:
    caption = f'<p class="caption">{html.escape(table.caption)}</p>' if table.caption else ""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in table.head)
    rows = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _cell(text: str) -> str:
    figure = text[:1].isdigit() or (text[:1] in "−+-–" and text[1:2].isdigit())
    return f"<td{' class=figure' if figure else ''}>{html.escape(text)}</td>"


def _figure(picture: Picture) -> str:
    caption = html.escape(picture.caption)
    return (
        f'<figure role="img" aria-label="{caption}"><div class="wide">{inline(picture)}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _circumstances(record: Record) -> str:
    """How the figures were measured: command, machine, versions, seeds."""
    setting, machine = record.setting, record.machine
    facts = {
        "command": record.command,
        "made": f"{record.made}; this call took {record.seconds:,.0f} s, not counting what was cached",
        "version": "the small one (--quick)" if setting.get("quick") else "the full one",
        "seeds": ", ".join(map(str, setting.get("seeds", []))),
        "data": setting.get("data", {}).get("source", "none"),
        "machine": f"{machine.get('processor')}, {machine.get('cores')} cores, {machine.get('threads')} threads",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{html.escape(str(value))}</dd>" for name, value in facts.items())
    return f"<details><summary>how it was measured</summary><dl>{rows}</dl></details>"
