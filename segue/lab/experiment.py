"""What an experiment is: a claim, a measurement that returns plain values, and how to report and draw them.

Each experiment is one file, named as in `TITLES`, with an `EXPERIMENT` in it; `docs/lab.md` shows how to add one.
Nothing here imports torch or matplotlib, so that the command line lists experiments at once.
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

    from segue.checkpoint import TextEncoder
    from segue.text.corpus import Corpus, Stream
    from segue.text.pairs import PairSet

TITLES = {
    "speed": "Evaluation speed: segment recurrence against a sliding window",
    "ablation": "Ablation: recurrence, relative positional encoding, loss",
    "extrapolation": "Length extrapolation: a longer memory than in training",
    "lengths": "Lengths never seen: trained on texts of 100 tokens, tested on 200",
    "fragmentation": "Context fragmentation: the loss after a segment boundary",
    "confusion": "Temporal confusion: why memory needs relative positions",
    "recl": "Relative effective context length (RECL) by architecture",
    "recl_words": "Relative effective context length (RECL) on words",
    "complexity": "Complexity per layer: time, memory, sequential operations, path length",
    "sequential": "Sequential against parallel: time per layer by length, on one thread and on two",
    "gradients": "Vanishing gradients: the gradient norm by distance",
    "positions": "Sinusoidal positional encodings",
    "attention": "Attention weights of a trained model",
    "heads": "Heads: which of them follow syntax and meaning",
    "terms": "The four terms of attention scores, each removed and each alone",
    "parts": "Ablation of the parts of a Transformer",
    "translation": "Translation: Transformer against RNN encoder-decoders",
    "algorithms": "Algorithmic tasks beyond the trained length: copy, reverse, parity, addition",
    "depth": "Fixed depth: products of permutations by layers and steps",
    "adaptation": "Adaptation at test time: dynamic evaluation and the neural cache",
    "words": "Words: Transformer-XL, adaptive input and LSTM on WikiText-2, with a cache and longer memories",
    "results": "Our results in the published tables",
}
"""Every experiment, in the order of the page."""

Results = dict[str, Any]
"""Plain values that JSON can hold."""


@dataclass(frozen=True, eq=False)
class Setting:
    """The data, the output folder, the seed, and whether to run the quick version."""

    data: Path  # a prepared corpus
    output: Path  # results, pictures, trained models
    quick: bool = False
    seed: int = 0
    runs: tuple[Path, ...] = ()  # runs of `segue train` to be measured too
    encoder: Path | None = None  # a trained encoder, whose heads are examined
    pairs: Path | None = None  # prepared sentence pairs
    words: Path | None = None  # a prepared corpus of words
    models: Path | None = None  # figures of `make models`
    report: Report = field(default=silent)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of repeated training: three, or one in the quick version."""
        return (self.seed,) if self.quick else (self.seed, self.seed + 1, self.seed + 2)

    @cached_property
    def corpus(self) -> "Corpus":
        from segue.text.corpus import open_corpus

        return open_corpus(self.data)

    @cached_property
    def text_encoder(self) -> "TextEncoder":
        from segue.interop.encoders import load_encoder

        assert self.encoder is not None
        return load_encoder(self.encoder)

    @cached_property
    def pair_set(self) -> "PairSet":
        from segue.text.pairs import open_pairs

        assert self.pairs is not None
        return open_pairs(self.pairs)

    def stream(self, split: str) -> "Stream":
        return self.corpus.stream(split)

    def summary(self) -> Results:
        """What the record says of the setting: all of it that influences the results of every experiment."""
        header = self.corpus.header
        return {
            "quick": self.quick,
            "seeds": list(self.seeds),
            "data": {"source": header.source, "tokenizer": header.tokenizer, "checksums": header.checksums},
        }


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.head) for row in self.rows), "a cell for every column"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in the measured values. Always computed, never typed."""

    claim: str
    shown: bool
    because: str
    size: str = ""  # how large the effect is, in a few words; the summary shows it
    sure: str = ""  # how sure that is: the seeds or texts that agree


Block = str | Table | Verdict
"""A part of the report; a string is a paragraph."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its file name and its caption."""

    name: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class Experiment:
    """A claim, and how to measure, report and draw it."""

    name: str
    claim: str  # as the papers make it, in plain words
    measure: Callable[[Setting], Results]
    tell: Callable[[Results], Sequence[Block]]
    draw: Callable[[Results], Sequence[Picture]]
    version: int = 1  # raised when results change their meaning: the page marks records of another version
    cacheable: bool = True  # False: measured every time, since it depends on more than its setting
    inputs: Callable[[Setting], Results] = lambda _: {}  # more of the setting that influences its results
    skipped: Callable[[Setting], str] = lambda _: ""  # why it cannot be measured; empty: it can

    @property
    def title(self) -> str:
        return TITLES[self.name]


def experiment(name: str) -> Experiment:
    """The experiment of that name, imported now."""
    if name not in TITLES:
        raise InputError(f"there is no experiment '{name}'; there are {', '.join(TITLES)}, or all")
    chosen = import_module(f"segue.lab.{name}").EXPERIMENT
    assert isinstance(chosen, Experiment)
    return chosen
