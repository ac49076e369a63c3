"""Cost per token by stream length (it should not grow), memory length, segment length, lanes and width.

    make growth                     # half a minute; writes bench/results/growth.json and docs/pictures/growth.svg

A cost is the fastest of several repeats; the exponent is the slope of the line through the logarithms.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import segue
from machine import THREADS, environment, interleaved
from segue.lab.profiling import exponent, resident
from segue.nn.memory import Memory

HERE = Path(__file__).parent
VOCAB = 256


def model_of(width: int, layers: int = 4) -> segue.TransformerXL:
    return segue.TransformerXL(
        segue.XLConfig(vocab=VOCAB, width=width, layers=layers, heads=width // 32)
    ).eval()


def reader(model: segue.TransformerXL, memory: int, segment: int, lanes: int) -> Callable[[], None]:
    """A function that reads one more segment at each call, with a full memory."""
    engine = model.frozen()
    held: list[Memory] = [engine.start(lanes=lanes, reach=segue.Reach(memory=memory))]

    def read(size: int = segment) -> None:
        with torch.no_grad():
            tokens = torch.randint(0, VOCAB, (lanes, size))
            hidden, held[0] = engine(tokens, held[0])
            engine.nats(hidden, tokens)

    while held[0].size < memory:
        read(256)
    return read


def swept(name: str, sizes: list[int], works: list[Callable[[], None]], tokens: list[int]) -> dict[str, Any]:
    """Seconds per token for each size, and the exponent."""
    times = interleaved({str(size): work for size, work in zip(sizes, works, strict=True)}, repeats=9)
    costs = [times[str(size)].fastest / count for size, count in zip(sizes, tokens, strict=True)]
    row = {"name": name, "sizes": sizes, "seconds per token": costs, "exponent": exponent(sizes, costs)}
    print(f"{name:<16} {sizes}: exponent {row['exponent']:.2f}", flush=True)
    return row


def stream(total: int) -> dict[str, Any]:
    """One stream of so many tokens: seconds per token and resident memory in each twentieth of it."""
    model = model_of(64, layers=2)
    read = reader(model, 256, 256, 1)
    part, seconds, resident_bytes = total // 20, [], []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(part // 256):
            read()
        seconds.append((time.perf_counter() - begin) / part)
        resident_bytes.append(resident())
    grown = resident_bytes[-1] / resident_bytes[1] - 1
    print(
        f"stream           {total:,} tokens: memory {grown:+.2%} from the first tenth to the last", flush=True
    )
    return {"tokens": total, "seconds per token": seconds, "resident": resident_bytes, "grown": grown}


def sweeps() -> list[dict[str, Any]]:
    model = model_of(256)
    memories, segments, lanes, widths = (
        [256, 512, 1024, 2048, 4096],
        [16, 32, 64, 128, 256],
        [1, 2, 4, 8],
        [128, 256, 512, 1024],
    )
    return [
        swept("memory", memories, [reader(model, size, 64, 1) for size in memories], [64] * 5),
        swept("segment", segments, [reader(model, 512, size, 1) for size in segments], segments),
        swept("lanes", lanes, [reader(model, 512, 32, count) for count in lanes], [32 * n for n in lanes]),
        swept("width", widths, [reader(model_of(width), 256, 64, 1) for width in widths], [64] * 4),
        generated([256, 1024, 4096, 16_384, 65_536]),
    ]


def generated(sizes: list[int]) -> dict[str, Any]:
    """Kernel attention: the cost of one more token, after so many were read."""
    torch.manual_seed(0)
    config = segue.KernelConfig(vocab=VOCAB, width=256, layers=4, heads=8)
    engine = segue.KernelModel(config).eval().frozen()
    memory, read, works = engine.start(lanes=1, reach=segue.Reach(memory=1)), 0, []
    for size in sizes:
        while read < size:
            _, memory = engine(torch.randint(0, VOCAB, (1, 256)), memory)
            read += 256
        works.append(partial(_one_more, engine, memory))
    return swept("kernel, tokens read", sizes, works, [1] * len(sizes))


def _one_more(engine: Any, memory: Memory) -> None:
    hidden, _ = engine(torch.zeros(1, 1, dtype=torch.int64), memory)
    engine.logprobs(hidden)


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 6.5), layout="constrained")
    axes[1, 3].set_axis_off()
    flat = results["stream"]
    places = [(index + 1) * flat["tokens"] / 20 for index in range(20)]
    axes[0, 0].plot(places, [1e6 * cost for cost in flat["seconds per token"]])
    axes[0, 0].set(title="stream length: time", xlabel="tokens read", ylabel="µs per token", ylim=(0, None))
    highest = 1.2 * max(flat["resident"]) / 2**20
    axes[0, 1].plot(places, [size / 2**20 for size in flat["resident"]])
    axes[0, 1].set(
        title="stream length: memory", xlabel="tokens read", ylabel="MiB resident", ylim=(0, highest)
    )
    for axis, sweep in zip(axes.flat[2:7], results["sweeps"], strict=True):
        axis.semilogx(sweep["sizes"], [1e6 * cost for cost in sweep["seconds per token"]], marker="o")
        title = f"{sweep['name']}: exponent {sweep['exponent']:.2f}"
        axis.set(title=title, xlabel=sweep["name"], ylabel="µs per token", ylim=(0, None))
        axis.set_xticks(sweep["sizes"], sweep["sizes"])
        axis.minorticks_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1_000_000, help="length of the long stream")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "growth.json")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "pictures" / "growth.svg")
    words = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    results = {
        "command": "make growth",
        "made": time.strftime("%Y-%m-%d"),
        **environment(),
        "stream": stream(words.tokens),
        "sweeps": sweeps(),
    }
    words.out.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, words.picture)


if __name__ == "__main__":
    main()
