"""matplotlib figures for light and dark pages: drawn once, in colours that the page's style replaces.

matplotlib is in the extra `viz`; this is the one file that checks whether it is installed.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.errors import InputError
from segue.lab.experiment import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE = "#1d1f24", "#c8c7c1"
"""Colours of text and of grid lines. In a page they become the CSS variables `--ink` and `--line`."""

COLOURS = ("#3b82c4", "#d9702b", "#3f9d6b", "#b5568f", "#8b7cc8", "#a38a2e", "#7b8794")
"""Line colours, distinct on light and dark backgrounds and with red-green colour blindness."""

HEAT = "viridis"

_STYLE: dict[Any, Any] = {
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": "medium",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def check_matplotlib() -> None:
    """Raise an error if matplotlib is not installed: before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("figures need the viz extra: pip install 'segue-lm[viz]'") from None


@contextmanager
def style(name: str = "segue") -> Iterator[None]:
    """The style of all figures; `name` makes the ids inside an SVG unique, so that several fit in one page."""
    check_matplotlib()
    import matplotlib as mpl
    from cycler import cycler

    with mpl.rc_context({**_STYLE, "svg.hashsalt": name, "axes.prop_cycle": cycler(color=COLOURS)}):
        yield


def canvas(
    rows: int = 1, columns: int = 1, *, width: float = 7.2, height: float = 3.6
) -> "tuple[Figure, Sequence[Axes]]":
    """An empty figure and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def plain_ticks(axis: "Axes", ticks: Sequence[float]) -> None:
    """A logarithmic y axis labelled with those of the given ticks that are in its range."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    inside = [tick for tick in ticks if low <= tick <= high]
    axis.set_yticks(inside, [f"{tick:,g}" for tick in inside])
    axis.minorticks_off()


def inline(picture: Picture) -> str:
    """The figure as SVG for an HTML page, in the page's colours."""
    with style(picture.name):
        text = _saved(picture, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    widest = (
        f' style="max-width: {100 * picture.figure.get_figwidth():.0f}px"'  # text no larger than the page's
    )
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', rf"\1{widest}", text, count=1)
    return text.replace(INK, "var(--ink)").replace(LINE, "var(--line)")


def save(picture: Picture, folder: Path) -> list[Path]:
    """Save the figure as PNG and SVG files, on a white background."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with style(picture.name):
        for kind in ("png", "svg"):
            path = folder / f"{picture.name}.{kind}"
            path.write_bytes(_saved(picture, kind, facecolor="white"))
            paths.append(path)
    return paths


def _saved(picture: Picture, kind: str, **more: Any) -> bytes:
    memory = io.BytesIO()
    dated = {"Date": None} if kind == "svg" else {}  # without a date, the same figure gives the same file
    picture.figure.savefig(memory, format=kind, dpi=144, metadata=dated, **more)
    return memory.getvalue()
