"""Training on a busy machine: steps per second, alone and beside other busy processes, by OpenMP spin setting.

Every setting runs in its own process, since OpenMP reads its environment once. The processes take turns, a few steps
each, so that other load on the machine affects all of them equally.

    python bench/busy.py --rounds 8
"""

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

SETTINGS: dict[str, dict[str, str]] = {
    "as OpenMP does": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    **{f"spin {count:,}": {"GOMP_SPINCOUNT": str(count)} for count in (1000, 10_000)},
    "as segue does": {"SEGUE_BENCH_WATCH": "1"},
}


def work() -> None:
    """For each line of standard input, take that many steps, and print the seconds."""
    import torch

    from segue.cli.busy import watch_others
    from segue.nn.xl import TransformerXL
    from segue.presets import preset
    from segue.text.lanes import Segment
    from segue.training.objective import Objective
    from segue.training.optim import build_optimizers

    if "SEGUE_BENCH_WATCH" in os.environ:
        watch_others()
    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    recipe = preset("enwik8-cpu").recipe
    model = TransformerXL(recipe.model.model_copy(update={"vocab": 256})).train()
    objective, train = Objective(model), recipe.train
    optimizers = build_optimizers(model, train)
    memory = model.start(lanes=train.lanes, reach=train.reach)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            tokens = torch.randint(0, 256, (train.lanes, train.segment + 1))
            nats, memory, _ = objective(Segment(tokens[:, :-1], tokens[:, 1:]), memory)
            nats.mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        print(time.perf_counter() - begin, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.work:
        work()
        return
    workers = {name: _worker(change) for name, change in SETTINGS.items()}
    for worker in workers.values():
        _ask(worker, 2)  # warm-up
    rates: dict[str, dict[int, float]] = {name: {} for name in workers}
    for busy in (0, 1, 2):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        time.sleep(2)
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(words.rounds):
            for name, worker in workers.items():
                _ask(worker, 1)  # threads are awake, and the load has been measured
                seconds[name].append(_ask(worker, words.steps))
        for other in others:
            other.kill()
        for name, values in seconds.items():
            rates[name][busy] = words.steps / median(values)
    for worker in workers.values():
        worker.kill()
    if words.json:
        print(json.dumps(rates))
        return
    usual = rates["as OpenMP does"][0]
    print(
        f"{'setting':<16} {'alone':>6} {'of usual':>9} {'beside 1':>9} {'share':>6} {'beside 2':>9} {'share':>6}"
    )
    for name, rate in rates.items():
        shares = [f"{rate[busy] / rate[0]:.2f}" for busy in (1, 2)]
        print(
            f"{name:<16} {rate[0]:>6.2f} {rate[0] / usual:>9.2f} {rate[1]:>9.2f} {shares[0]:>6} "
            f"{rate[2]:>9.2f} {shares[1]:>6}"
        )


def _worker(change: dict[str, str]) -> "subprocess.Popen[str]":
    clean = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    words = [sys.executable, __file__, "--work"]
    return subprocess.Popen(words, env={**clean, **change}, stdin=-1, stdout=-1, text=True)


def _ask(worker: "subprocess.Popen[str]", steps: int) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(steps, file=worker.stdin, flush=True)
    return float(worker.stdout.readline())


if __name__ == "__main__":
    main()
