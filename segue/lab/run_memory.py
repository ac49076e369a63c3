"""A given run evaluated with longer memories than in training: whether it gains, and how sure that is.

A run has no other seeds, so the test text is cut into blocks, which are drawn again and again (bootstrap).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from segue.checkpoint import Bundle
from segue.config import Reach, Reading, XLConfig
from segue.infer.evaluate import scored, surprises_by_place, targets_of
from segue.lab.context_lengths import Estimate, estimate
from segue.lab.drawing import INK, canvas
from segue.lab.experiment import Block, Picture, Results, Setting, Table, Verdict
from segue.lab.statistics import MARGIN, mean
from segue.recipe import TrainConfig
from segue.text.corpus import Corpus

FACTORS, QUICK_FACTORS = (2, 4, 8, 16), (2, 4)
"""The longer memories, in multiples of that of training."""

CLAMP_SHARES = (0.5, 1.0)
"""The clamps that are tried, as shares of the longest distance in training; and none."""

SCORED = {True: (2000, 4000), False: (20_000, 50_000)}
"""Quick or not: tokens of the validation split, on which the clamp is chosen, and of the test split."""

BLOCKS, DRAWS = 25, 1000


class Mode(NamedTuple):
    """A memory length, whether every token sees as many keys as that (a span), and the clamp."""

    memory: int
    spanned: bool
    clamp: int | None

    def reading(self, segment: int) -> Reading:
        span = self.memory if self.spanned else None
        return Reading(segment=segment, reach=Reach(memory=self.memory, span=span, clamp=self.clamp))


def memory_of_run(setting: Setting, name: str, bundle: Bundle, train: TrainConfig, corpus: Corpus) -> Results:
    """The score by memory length; empty for a run without memory, or without relative positions."""
    config = bundle.model.config
    if not (isinstance(config, XLConfig) and config.position_encoding.relative and train.memory):
        return {}
    trained = Mode(train.memory, spanned=False, clamp=None)
    reader = _Reader(setting, name, bundle, train.segment, corpus)
    rows = [reader.row(trained, reader.valid(trained))]
    for spanned in (False, True):
        for times in QUICK_FACTORS if setting.quick else FACTORS:
            modes = list(_modes(train, times * train.memory, spanned))
            losses = [reader.valid(mode) for mode in modes]
            best = losses.index(min(losses))
            rows.append(reader.row(modes[best], losses[best]))
    unit = "bits per byte" if corpus.header.lossless else "bits per token"
    return {"run": name, "segment": train.segment, "scored": reader.tested, "unit": unit, "rows": rows}


def _modes(train: TrainConfig, memory: int, spanned: bool) -> Iterator[Mode]:
    longest = train.segment + train.memory - 1
    for clamp in (None, *(int(share * longest) for share in CLAMP_SHARES)):
        yield Mode(memory, spanned, clamp)


class _Reader:
    """Scores a run in several modes."""

    def __init__(self, setting: Setting, name: str, bundle: Bundle, segment: int, corpus: Corpus) -> None:
        self.setting, self.name, self.segment = setting, name, segment
        self.engine, self.streams = (
            bundle.model.frozen(),
            {split: corpus.stream(split) for split in ("valid", "test")},
        )
        chosen, tested = SCORED[setting.quick]
        self.chosen = targets_of(self.streams["valid"], chosen)
        self.tested = targets_of(self.streams["test"], tested)

    def valid(self, mode: Mode) -> float:
        """Bits per token of the validation split."""
        return float(self._nats("valid", mode, self.chosen).mean()) / math.log(2)

    def row(self, mode: Mode, valid: float) -> Results:
        """The score on the test split, also by blocks of the text."""
        nats = self._nats("test", mode, self.tested)
        size = scored(self.streams["test"], 0.0, self.tested).bytes or self.tested
        blocks = [float(block.sum()) for block in nats.tensor_split(BLOCKS)]
        bits = [BLOCKS * block / math.log(2) / size for block in blocks]
        return {**mode._asdict(), "valid": valid, "bits": mean(bits), "blocks": bits}

    def _nats(self, split: str, mode: Mode, total: int) -> torch.Tensor:
        label = f"{self.name}, memory {mode.memory}, {split}"
        return surprises_by_place(
            self.engine,
            self.streams[split],
            mode.reading(self.segment),
            total,
            report=lambda _task, done, of: self.setting.report(f"reading with {label}", done, of),
        )


def gain(row: Results, other: Results) -> Estimate:
    """The bits that one way to read saves against another, with its interval over blocks of text."""
    saved = torch.tensor(other["blocks"], dtype=torch.float64) - torch.tensor(
        row["blocks"], dtype=torch.float64
    )
    draw = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(saved), (DRAWS, len(saved)), generator=draw)
    return estimate(float(saved.mean()), saved[chosen].mean(dim=1).tolist())


def tell_memories(sweeps: Sequence[Results]) -> list[Block]:
    """A verdict and a table for each run."""
    return [block for sweep in sweeps for block in _blocks(sweep)]


def _blocks(sweep: Results) -> Iterator[Block]:
    trained, *longer = sweep["rows"]
    best = min(longer, key=lambda row: float(row["valid"]))
    saved = gain(best, trained)
    yield Verdict(
        f"The run {sweep['run']} is better with a longer memory than in training.",
        saved.value > MARGIN and saved.low > 0,
        f"{trained['bits']:.3f} {sweep['unit']} with the memory of training, {best['bits']:.3f} with {_name(best)}, "
        f"the best on the validation split; {saved.low:.3f} to {saved.high:.3f} saved (95 % of resampled texts)",
        size=f"{-saved.value:+.3f} {sweep['unit']} at {best['memory'] / trained['memory']:g} times the memory",
        sure=f"one run, {-saved.high:+.3f} to {-saved.low:+.3f} (95 %)",
    )
    yield Table(
        ["evaluated with", sweep["unit"], "saved against the memory of training"],
        [
            [_name(row), f"{row['bits']:.3f}", "–" if row is trained else _interval(gain(row, trained))]
            for row in sweep["rows"]
        ],
        f"{sweep['run']}: the first {sweep['scored']:,} test tokens in segments of {sweep['segment']}, by memory "
        "length. With a span, every token sees as many keys as the memory is long. Each clamp was chosen on the "
        "validation split.",
    )


def _name(row: Results) -> str:
    span = ", span" if row["spanned"] else ""
    return f"memory {row['memory']}{span}, {'no clamp' if row['clamp'] is None else 'clamp ' + str(row['clamp'])}"


def _interval(saved: Estimate) -> str:
    return f"{saved.value:+.3f} ({saved.low:+.3f} to {saved.high:+.3f})"


def draw_memories(sweeps: Sequence[Results]) -> list[Picture]:
    """The bits that each run saves by memory length, with intervals."""
    if not sweeps:
        return []
    figure, axes = canvas(1, len(sweeps), width=max(5.2, 4.6 * len(sweeps)))
    for axis, sweep in zip(axes, sweeps, strict=True):
        trained, *longer = sweep["rows"]
        for spanned, label in ((False, "without a span"), (True, "with a span")):
            rows = [row for row in longer if row["spanned"] == spanned]
            gains = [gain(row, trained) for row in rows]
            below = [one.value - one.low for one in gains]
            above = [one.high - one.value for one in gains]
            values = [one.value for one in gains]
            style: dict[str, Any] = {"fmt": "o-", "capsize": 3, "label": label}
            axis.errorbar([row["memory"] for row in rows], values, yerr=[below, above], **style)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set_xscale("log", base=2)
        memories = sorted({row["memory"] for row in longer})
        axis.set_xticks(memories, [str(memory) for memory in memories])
        axis.set(title=sweep["run"], xlabel="memory length", ylabel=f"{sweep['unit']} saved")
        axis.legend()
    caption = "What longer memories save against that of training, with 95 % of resampled texts."
    return [Picture("run-memory", caption, figure)]
