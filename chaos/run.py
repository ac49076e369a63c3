"""Break things on purpose, count, and tell what was lost: nothing.

python chaos/run.py                      about ten minutes on two cores
python chaos/run.py --share 1            as many of each as the docs speak of: most of an hour
python chaos/run.py --only kills ranks   some of the attacks; results of the others stay as they were
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "chaos"), str(ROOT / "tests")]
os.environ["OMP_NUM_THREADS"] = "1"  # children are forks, which threads would not survive

import torch  # noqa: E402

import damage  # noqa: E402
import hostile  # noqa: E402
import kills  # noqa: E402
import rank_kills  # noqa: E402
import segue.cli  # noqa: E402
import syscalls  # noqa: E402
import threads  # noqa: E402
from cases import cases  # noqa: E402
from children import started  # noqa: E402
from segue.launch import processor  # noqa: E402
from tally import Tally  # noqa: E402

FULL = {
    "kills": 2000,
    "processes": 100,
    "damage": 20_000,
    "hostile": 200_000,
    "ranks": 100,
    "threads": 7000,  # rounds of 8 threads
}
"""How many of each a share of 1 is; system calls and bits are all there are, thinned out below a share of 1."""

Job = Callable[[Path], Tally]


def jobs(shared: Path, share: float, seed: int) -> Iterator[tuple[str, Job]]:
    """Every attack with its name, the long ones in two parts."""
    count = {name: max(2, round(full * share)) for name, full in FULL.items()}
    for case in cases(shared):
        yield "calls", lambda folder, case=case: _calls(case, folder, share)
    for half in range(2):
        yield "kills", lambda folder, half=half: kills.attack(folder, count["kills"] // 2, 2 * seed + half)
    yield "processes", lambda folder: kills.attack_processes(folder, count["processes"], seed)
    yield "bits", damage.every_bit
    yield "damage", lambda folder: damage.random_damage(folder, count["damage"], seed)
    yield "hostile", lambda folder: hostile.attack(folder, count["hostile"], seed)
    yield "ranks", lambda folder: rank_kills.attack(folder, count["ranks"], seed)
    yield "threads", lambda folder: threads.attack(count["threads"], seed)  # noqa: ARG005


def _calls(case: syscalls.Case, folder: Path, share: float) -> Tally:
    """SIGKILL and a full disk at every call; the other errors, and the slow lab, at some calls below a share of 1."""
    thin = max(1, round(1 / share))
    slow = thin if case.name == "lab" else 1
    tally = syscalls.attack(case, folder / "first", ("KILL", "ENOSPC"), every=slow)
    tally.add(syscalls.attack(case, folder / "second", ("EIO", "EDQUOT"), every=thin))
    return tally


def run_all(chosen: list[tuple[str, Job]], folder: Path) -> dict[str, Tally]:
    """Two jobs at a time, each in a child; tallies of the same name are added up."""
    found: dict[str, Tally] = {}
    running: dict[int, tuple[int, float]] = {}
    waiting = list(enumerate(chosen))
    while waiting or running:
        while waiting and len(running) < 2:
            number, (_, job) = waiting.pop(0)
            child = started(lambda n=number, j=job: _write(folder, n, j), folder / f"{number}.said")
            running[child] = number, time.monotonic()
        child, status = os.wait()
        number, begin = running.pop(child)
        tally = _read(folder, number, chosen[number][0], status)
        tally.seconds = time.monotonic() - begin
        print(f"{tally.name}: {tally.tried:,} tried, {tally.lost} lost, {tally.seconds:.0f} s", flush=True)
        for loss in tally.losses[:5]:
            print(f"  {loss}")
        known = found.setdefault(tally.name, Tally(tally.name))
        known.add(tally)
        known.seconds += tally.seconds
    return found


def _write(folder: Path, number: int, job: Job) -> None:
    place = folder / f"job-{number}"
    tally = job(place)
    (folder / f"{number}.json").write_text(
        json.dumps({"name": tally.name, "outcomes": tally.outcomes, "losses": tally.losses})
    )
    shutil.rmtree(place, ignore_errors=True)


def _read(folder: Path, number: int, kind: str, status: int) -> Tally:
    if status:
        tally = Tally(kind)
        tally.lose(f"the attack itself ended badly: {(folder / f'{number}.said').read_text()[-2000:]}")
        return tally
    values = json.loads((folder / f"{number}.json").read_text())
    return Tally(values["name"], Counter(values["outcomes"]), values["losses"])


def table(rows: dict[str, Any]) -> str:
    """What was tried and what was lost."""
    wide = max(map(len, rows))
    lines = [f"{'attack':<{wide}}  {'tried':>9}  {'lost':>4}  outcomes"]
    for name, row in rows.items():
        outcomes = ", ".join(f"{count:,} {what}" for what, count in row["outcomes"].items())
        lines.append(f"{name:<{wide}}  {row['tried']:>9,}  {row['lost']:>4}  {outcomes}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=0.2, help="of the counts that the docs speak of")
    parser.add_argument("--hours", type=float, help="instead: how long it may take, roughly")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], choices=["calls", "bits", *FULL])
    parser.add_argument("-o", "--output", type=Path, help="a JSON file to keep the results in")
    words = parser.parse_args()
    share = words.share if words.hours is None else max(0.05, words.hours * 1.2)
    if not syscalls.available():
        print(
            "strace is missing or may not trace here: system calls are not attacked (apt-get install strace)"
        )
    torch.set_num_threads(1)
    memory = Path("/dev/shm")  # noqa: S108  (a disk that does not wait: a kill leaves the same there)
    folder = Path(tempfile.mkdtemp(prefix="segue-chaos-", dir=memory if memory.is_dir() else None))
    try:
        chosen = [
            (name, job)
            for name, job in jobs(folder / "shared", share, words.seed)
            if (not words.only or name in words.only)
        ]
        found = run_all(chosen, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = {name: {**tally.facts(), **_circumstances(share, words.seed)} for name, tally in found.items()}
    if words.output is not None:
        before = json.loads(words.output.read_text())["attacks"] if words.output.exists() else {}
        kept = {"command": "make chaos", "attacks": {**before, **rows}}
        words.output.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    print(table(rows))
    lost = sum(tally.lost for tally in found.values())
    print(f"\n{sum(tally.tried for tally in found.values()):,} tried, {lost} lost")
    return int(lost > 0)


def _circumstances(share: float, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "share": share,
        "made": time.strftime("%Y-%m-%d"),
        "segue": segue.__version__,
        "torch": torch.__version__,
        "processor": processor(),
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
