"""What an experiment is: a claim, a measurement that returns plain values, and how they are told and drawn.

One file for each, named as in `TITLES`, with an `EXPERIMENT` in it; `docs/lab.md` shows how to add one.
Nothing here imports torch or matplotlib: the command line lists experiments without waiting for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.errors import InputError
from segue.progress import Report, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from segue.text.corpus import Corpus, Stream

TITLES = {
    "speed": "Reading on against sliding by one: what one token costs",
    "ablation": "What recurrence, relative positions and the loss are worth",
    "extrapolation": "Reading farther than in training",
    "fragmentation": "What a seam costs",
    "confusion": "Why positions must be relative",
    "recl": "How much context each kind of model makes use of",
    "complexity": "How the cost of layers grows",
    "gradients": "How far back gradients reach",
    "positions": "What the sinusoids look like",
    "attention": "Where a trained model looks",
    "parts": "What each part of a Transformer is worth",
    "algorithms": "Copying, reversing, counting and adding beyond the trained length",
    "adaptation": "Learning while reading: dynamic evaluation and the neural cache",
    "results": "Our figures in the published tables",
}
"""Every experiment, in the order of the page."""

Results = dict[str, Any]
"""What JSON can hold, and nothing else."""


@dataclass(frozen=True, eq=False)
class Setting:
    """On what, where to, how thoroughly."""

    data: Path  # a prepared corpus
    output: Path  # results, pictures, trained models
    quick: bool = False
    seed: int = 0
    runs: tuple[Path, ...] = ()  # trained by others, to be measured too
    report: Report = field(default=silent)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of repeated trainings: three for a spread, one where it must be quick."""
        return (self.seed,) if self.quick else (self.seed, self.seed + 1, self.seed + 2)

    @cached_property
    def corpus(self) -> "Corpus":
        from segue.text.corpus import open_corpus

        return open_corpus(self.data)

    def stream(self, split: str) -> "Stream":
        return self.corpus.stream(split)

    def told(self) -> Results:
        """What decides the results, as they say it of themselves."""
        header = self.corpus.header
        return {
            "quick": self.quick,
            "seeds": list(self.seeds),
            "data": {"source": header.source, "tokenizer": header.tokenizer, "checksums": header.checksums},
        }


@dataclass(frozen=True)
class Table:
    """Rows of words and figures, already formatted."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.head) for row in self.rows), "a cell for every column"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim shows in what was measured. Computed, never typed."""

    claim: str
    shown: bool
    because: str


Block = str | Table | Verdict
"""What a telling is made of; a string is a paragraph."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its name as a file and what it shows."""

    name: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class Experiment:
    """A claim, and how to find out."""

    name: str
    claim: str  # as the papers make it, in plain words
    measure: Callable[[Setting], Results]
    tell: Callable[[Results], Sequence[Block]]
    draw: Callable[[Results], Sequence[Picture]]
    version: int = 1  # of what the results mean: those of another one do not stand beside today's unremarked
    lasting: bool = True  # else it is measured every time, since it depends on more than its setting

    @property
    def title(self) -> str:
        return TITLES[self.name]


def experiment(name: str) -> Experiment:
    """The experiment of that name, imported now."""
    if name not in TITLES:
        raise InputError(f"there is no experiment '{name}'; there are {', '.join(TITLES)}, or all")
    found = import_module(f"segue.lab.{name}").EXPERIMENT
    assert isinstance(found, Experiment)
    return found
