"""What one step of the core costs, beside the machine's own matrix product.

    python bench/core.py

Absolute times mean little on a shared machine; the share of the matmul peak travels better.
"""

import statistics
import time
from collections.abc import Callable

import torch

import segue
from segue.nn.footprint import training_flops

THREADS = 2


def median_seconds(work: Callable[[], object], repeats: int = 7) -> float:
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def matmul_peak(size: int = 1024) -> float:
    """Floating-point operations a second of a large product in float32."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / median_seconds(lambda: left @ right)


def main() -> None:
    torch.set_num_threads(THREADS)
    peak = matmul_peak()
    print(f"torch {torch.__version__}, {THREADS} threads, matmul {peak / 1e9:.0f} GFLOP/s\n")
    print(f"{'training step':<38} {'seconds':>8} {'tokens/s':>9} {'of matmul peak':>15}")
    for layers, width, heads, segment, lanes in (
        (12, 512, 8, 256, 2),
        (6, 256, 8, 128, 8),
        (4, 128, 4, 64, 16),
    ):
        config = segue.XLConfig(vocab=204, width=width, layers=layers, heads=heads)
        model = segue.TransformerXL(config)
        tokens = torch.randint(0, 204, (lanes, segment))
        _, memory = model(tokens, model.start(lanes=lanes, reach=segue.Reach(memory=segment)))

        def step(
            model: segue.TransformerXL = model,
            tokens: torch.Tensor = tokens,
            memory: segue.StateMemory = memory,
        ) -> None:
            hidden, _ = model(tokens, memory)
            model.nats(hidden, tokens).mean().backward()

        seconds = median_seconds(step)
        train = segue.TrainConfig(lanes=lanes, segment=segment, memory=segment, steps=1)
        share = training_flops(config, train) / seconds / peak
        name = f"{layers} layers, {width}, T=M={segment}, B={lanes}"
        print(f"{name:<38} {seconds:8.3f} {lanes * segment / seconds:9,.0f} {share:14.0%}")


if __name__ == "__main__":
    main()
