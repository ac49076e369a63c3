"""Figures that fit a light and a dark page: drawn once, in colours that a page may exchange.

matplotlib is the extra `viz`; this is the one file that asks whether it is there.
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
"""Of letters and of grids, on paper. In a page they become its own `--ink` and `--line`."""

COLOURS = ("#3b82c4", "#d9702b", "#3f9d6b", "#b5568f", "#8b7cc8", "#a38a2e", "#7b8794")
"""Told apart on light and dark, and by those who do not see red and green."""

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
    """Say so before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("figures need the viz extra: pip install 'segue-lm[viz]'") from None


@contextmanager
def style(name: str = "segue") -> Iterator[None]:
    """What is drawn in here looks alike; `name` keeps the marks of one figure apart from another's in one page."""
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
    """A logarithmic scale from bottom to top with these numbers written out, of those that lie inside."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    inside = [tick for tick in ticks if low <= tick <= high]
    axis.set_yticks(inside, [f"{tick:,g}" for tick in inside])
    axis.minorticks_off()


def inline(picture: Picture) -> str:
    """The figure as SVG to stand in a page, in the page's colours."""
    with style(picture.name):
        text = _saved(picture, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    widest = f' style="max-width: {100 * picture.figure.get_figwidth():.0f}px"'  # letters no larger than the page's
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', rf"\1{widest}", text, count=1)
    return text.replace(INK, "var(--ink)").replace(LINE, "var(--line)")


def save(picture: Picture, folder: Path) -> list[Path]:
    """The figure as PNG and SVG files, on white paper."""
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
    dated = {"Date": None} if kind == "svg" else {}  # the same figure is the same file
    picture.figure.savefig(memory, format=kind, dpi=144, metadata=dated, **more)
    return memory.getvalue()
