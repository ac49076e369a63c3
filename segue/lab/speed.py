"""Evaluation speed: the cost of one predicted token with memory, compared with a sliding window.

Nothing is trained: the cost does not depend on the weights.
"""

import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from segue.config import Reach, Reading, XLConfig
from segue.lab.drawing import canvas, plain_ticks
from segue.lab.experiment import Block, Experiment, Picture, Results, Setting, Table, Verdict
from segue.lab.profiling import exponent, interleaved, resident
from segue.lab.published import published, source
from segue.lab.sliding_window import fast_window, textbook_window
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL

SHAPES = {True: {"layers": 2, "width": 256, "heads": 4}, False: {"layers": 12, "width": 512, "heads": 8}}
"""Model shapes, quick or not; the full one is the published enwik8 model of 12 layers."""

VOCAB, SEGMENT, CLAMP = 256, 128, 1000
SIDES = {"textbook": "sliding window, all scores", "fast": "sliding window, fused attention"}


@torch.no_grad()
def measure(setting: Setting) -> Results:
    torch.manual_seed(setting.seed)
    shape: dict[str, Any] = {**SHAPES[setting.quick], "vocab": VOCAB}
    vanilla = TransformerXL(XLConfig(**shape, encoding="sinusoidal")).eval()
    xl = TransformerXL(XLConfig(**shape)).eval()
    lengths = [int(length) for length in published("speed")["times"]]
    rows = []
    for number, length in enumerate(lengths):
        setting.report("windows", number, len(lengths))
        rows.append(_row(vanilla, xl, length, repeats=1 if setting.quick else 3))
    return {
        "model": shape,
        "rows": rows,
        "stream": _stream(setting, 50_000 if setting.quick else 500_000),
        "memory": _memories(setting, xl, 3 if setting.quick else 9),
    }


def _row(vanilla: TransformerXL, xl: TransformerXL, length: int, repeats: int) -> Results:
    window = _tokens(length)
    reading = Reading(segment=SEGMENT, reach=Reach(memory=length, span=length, clamp=CLAMP))
    reader = _Reader(xl, reading)
    times = interleaved(
        {
            "textbook": lambda: vanilla.nats(textbook_window(vanilla, window), window[:, -1:]),
            "fast": lambda: vanilla.nats(fast_window(vanilla, window), window[:, -1:]),
            "segments": lambda: _segment(vanilla, window),
            "xl": reader.read,
        },
        repeats,
    )
    tokens = {"textbook": 1, "fast": 1, "segments": length, "xl": reading.chunk}
    return {
        "attention": length,
        "seconds per token": {name: times[name].median / tokens[name] for name in times},
    }


def _segment(vanilla: TransformerXL, window: Tensor) -> None:
    """All tokens of an isolated segment predicted in one forward pass."""
    hidden, _ = vanilla(window, vanilla.start(reach=Reach(memory=0, positions="restart")))
    vanilla.nats(hidden, window)


class _Reader:
    """Reads one more segment at each call of `read`, with a full memory."""

    def __init__(self, model: TransformerXL, reading: Reading) -> None:
        self._model, self._tokens = model.frozen(), _tokens(reading.chunk)
        self._memory: Memory = self._model.start(reach=reading.reach)
        while self._memory.size < reading.reach.memory:
            self.read()

    def read(self) -> None:
        with torch.no_grad():
            hidden, self._memory = self._model(self._tokens, self._memory)
            self._model.nats(hidden, self._tokens)


def _tokens(count: int) -> Tensor:
    return torch.randint(0, VOCAB, (1, count))


def _stream(setting: Setting, total: int) -> Results:
    """One long stream: seconds per token and resident bytes in each twentieth of it."""
    model = TransformerXL(XLConfig(vocab=VOCAB, width=64, layers=2, heads=2)).eval()
    reader = _Reader(model, Reading(segment=256, reach=Reach(memory=256)))
    part, seconds, resident_bytes = total // 20, [], []
    for number in range(20):
        begin = time.perf_counter()
        for _ in range(part // 256):
            reader.read()
        seconds.append((time.perf_counter() - begin) / (part // 256 * 256))
        resident_bytes.append(resident())
        setting.report("a long stream", number + 1, 20)
    return {"tokens": total, "seconds per token": seconds, "resident": resident_bytes}


def _memories(setting: Setting, model: TransformerXL, repeats: int) -> Results:
    """The cost of a token by memory length."""
    sizes = [256, 512, 1024, 2048, 4096]
    readers = {str(size): _Reader(model, Reading(segment=64, reach=Reach(memory=size))) for size in sizes}
    setting.report("memories", 1, 2)
    times = interleaved({name: reader.read for name, reader in readers.items()}, repeats)
    costs = [times[str(size)].fastest / 64 for size in sizes]
    return {"sizes": sizes, "seconds per token": costs, "exponent": exponent(sizes, costs)}


def ratio(row: Results, side: str) -> float:
    """The cost of a token on that side, in multiples of Transformer-XL's."""
    seconds = row["seconds per token"]
    return float(seconds[side] / seconds["xl"])


def tell(results: Results) -> list[Block]:
    rows, theirs, model = results["rows"], published("speed"), results["model"]
    last, stream, memory = rows[-1], results["stream"], results["memory"]
    halves = [median(stream["seconds per token"][:10]), median(stream["seconds per token"][10:])]
    grown = stream["resident"][-1] / stream["resident"][1] - 1
    rising = all(ratio(left, "textbook") < ratio(right, "textbook") for left, right in pairwise(rows))
    return [
        "To give every token a full context, a vanilla Transformer reads the whole window again for every token. "
        "Transformer-XL keeps the context in memory and computes the new tokens only. "
        f"The published table compares the time per token. Here, with {model['layers']} layers "
        f"of width {model['width']}, the window is read in two ways: with all scores of all tokens, as published, "
        "and as fast as PyTorch can (fused attention, one query in the last layer).",
        Verdict(
            "Transformer-XL is more than a thousand times as fast as a sliding window at an attention length of "
            f"{last['attention']:,}.",
            ratio(last, "textbook") > 1000,
            f"{ratio(last, 'textbook'):,.0f} times as fast as the window with all scores, "
            f"{ratio(last, 'fast'):,.0f} times as fast as the one with fused attention; published: "
            f"{theirs['times'][str(last['attention'])]:,}",
        ),
        Verdict(
            "The longer the attention length, the greater the speed-up.",
            rising,
            ", ".join(f"{ratio(row, 'textbook'):,.0f} × at {row['attention']:,}" for row in rows),
        ),
        Verdict(
            "The cost of a token, in time and in memory, does not grow with the length of the stream.",
            halves[1] < 1.25 * halves[0] and grown < 0.02,
            f"over {stream['tokens']:,} tokens, the second half took {halves[1] / halves[0]:.2f} times as long "
            f"as the first, and resident memory changed by {grown:+.1%} from the first tenth to the end",
        ),
        Table(
            ["attention length", *SIDES.values(), "isolated segments", "published"],
            [
                [
                    f"{row['attention']:,}",
                    *(f"{ratio(row, side):,.0f} ×" for side in SIDES),
                    f"{ratio(row, 'segments'):.1f} ×",
                    f"{theirs['times'][str(row['attention'])]:,} ×",
                ]
                for row in rows
            ],
            f"Time per predicted token, in multiples of Transformer-XL's. Published: {source(theirs['source'])}.",
        ),
        "Isolated segments are the cheap evaluation of a vanilla model: one window predicts all of its tokens in "
        "one pass, the first of them without context. The experiment on context fragmentation measures what that "
        f"costs in bits. Transformer-XL's time per token grows as the power {memory['exponent']:.2f} "
        "of the memory length here.",
    ]


def draw(results: Results) -> list[Picture]:
    rows, theirs = results["rows"], published("speed")["times"]
    lengths = [row["attention"] for row in rows]
    figure, (left, middle, right) = canvas(1, 3, width=11, height=3.8)
    for side, name in SIDES.items():
        left.plot(lengths, [ratio(row, side) for row in rows], "o-", label=name)
    left.plot(lengths, [theirs[str(length)] for length in lengths], "s--", label="published")
    left.set(title="speed-up over a sliding window", xlabel="attention length")
    plain_ticks(left, [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000])
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    stream = results["stream"]
    places = [(number + 1) * stream["tokens"] / 20_000 for number in range(20)]
    middle.plot(places, [1e6 * cost for cost in stream["seconds per token"]])
    middle.set(
        title="one long stream", xlabel="thousands of tokens read", ylabel="µs per token", ylim=(0, None)
    )
    memory = results["memory"]
    right.plot(memory["sizes"], [1e6 * cost for cost in memory["seconds per token"]], "o-")
    right.set(title="memory length", xlabel="states in memory", ylabel="µs per token", ylim=(0, None))
    return [
        Picture(
            "speed",
            "Cost of one token: compared with a sliding window, along a stream, and by memory length.",
            figure,
        )
    ]


EXPERIMENT = Experiment(
    name="speed",
    claim="Transformer-XL evaluates up to 1,874 times as fast as a vanilla Transformer with a sliding window.",
    measure=measure,
    tell=tell,
    draw=draw,
)
